package clickhouse

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"

	ch "github.com/ClickHouse/clickhouse-go/v2"
)

// Kind is what keeps ClickHouse from doing its work.
type Kind string

// The kinds of outages.
const (
	Unreachable   Kind = "unreachable"
	TimedOut      Kind = "timeout"
	LoginRefused  Kind = "login-refused"
	NotAllowed    Kind = "not-allowed"
	NoDatabase    Kind = "no-database"
	NoTable       Kind = "no-table"
	WrongTable    Kind = "wrong-table"
	ReadOnly      Kind = "read-only"
	TooManyParts  Kind = "too-many-parts"
	TooManyMonths Kind = "too-many-partitions"
	DiskFull      Kind = "disk-full"
	OutOfMemory   Kind = "out-of-memory"
	Busy          Kind = "busy"
	Replication   Kind = "replication"
	BadSettings   Kind = "settings"
	TooMuch       Kind = "too-much"
	RefusesAll    Kind = "refuses-every-row"
	Unknown       Kind = "unknown"
)

// Outage is a failure of ClickHouse, not of a record: try again. Its text is one sentence for a person with the server's own
// words after it, free of secrets.
type Outage struct {
	Kind Kind
	What string
	Err  error
}

// Error is the sentence and the cause, in one line.
func (o *Outage) Error() string {
	if o.Err == nil {
		return o.What
	}
	return o.What + " (" + oneLine(o.Err.Error()) + ")"
}

// Unwrap gives the cause.
func (o *Outage) Unwrap() error { return o.Err }

// maxCause bounds the server's words: some exceptions carry paragraphs.
const maxCause = 300

func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxCause {
		cut := maxCause
		for cut > 0 && s[cut]&0xC0 == 0x80 {
			cut--
		}
		s = s[:cut] + "…"
	}
	return s
}

// meaning is what an exception code of the server says to a person.
type meaning struct {
	kind Kind
	what string
}

// meanings by exception code (src/Common/ErrorCodes.cpp of ClickHouse).
var meanings = map[int32]meaning{ //nolint:gochecknoglobals // a table that nothing writes
	516: {LoginRefused, "ClickHouse refuses the login: check user and password in clickhouse.dsn"},
	192: {LoginRefused, "ClickHouse does not know the user of clickhouse.dsn"},
	193: {LoginRefused, "ClickHouse refuses the password in clickhouse.dsn"},
	194: {LoginRefused, "ClickHouse wants a password for the user of clickhouse.dsn"},
	195: {LoginRefused, "ClickHouse does not let the user of clickhouse.dsn log in from this address"},
	497: {NotAllowed, "ClickHouse does not let the user of clickhouse.dsn do this: grant it SELECT and INSERT on the facts table"},
	81:  {NoDatabase, "the ClickHouse database of clickhouse.dsn does not exist: run `vitrina migrate up`"},
	60:  {NoTable, "the ClickHouse table of the price facts does not exist: run `vitrina migrate up`"},
	218: {NoTable, "the ClickHouse table of the price facts has just been dropped: run `vitrina migrate up`"},
	16:  {WrongTable, "the ClickHouse table of the price facts lacks a column: compare it with `vitrina migrate status`"},
	53:  {WrongTable, "a column of the ClickHouse table of the price facts has another type: compare it with `vitrina migrate status`"},
	8:   {WrongTable, "the ClickHouse table of the price facts lacks a column: compare it with `vitrina migrate status`"},
	10:  {WrongTable, "the ClickHouse table of the price facts lacks a column: compare it with `vitrina migrate status`"},
	44:  {WrongTable, "the ClickHouse table of the price facts does not take inserts into a column: compare it with `vitrina migrate status`"},
	164: {ReadOnly, "the user of clickhouse.dsn is in readonly mode: give it a profile with readonly = 0"},
	242: {ReadOnly, "the ClickHouse table of the price facts is read-only: a replica has lost Keeper or is starting"},
	774: {ReadOnly, "the ClickHouse table of the price facts is read-only: reset its setting table_readonly"},
	720: {ReadOnly, "ClickHouse runs in a mode that takes no inserts"},
	252: {TooManyParts, "the ClickHouse table of the price facts has too many parts: merges do not keep up, look at system.merges and the disks"},
	243: {DiskFull, "ClickHouse has no room left on its disks: free some or add a disk"},
	241: {OutOfMemory, "ClickHouse is out of memory"},
	173: {OutOfMemory, "ClickHouse is out of memory"},
	202: {Busy, "ClickHouse runs too many queries already"},
	203: {Busy, "ClickHouse has too many connections already"},
	201: {Busy, "the ClickHouse user's quota is used up"},
	159: {TimedOut, "ClickHouse gave the statement up: it took longer than max_execution_time"},
	160: {TimedOut, "ClickHouse gave the statement up: it would take too long"},
	209: {TimedOut, "ClickHouse timed out on a connection of its own"},
	394: {TimedOut, "the statement was cancelled in ClickHouse"},
	735: {TimedOut, "the statement was cancelled in ClickHouse"},
	210: {Unreachable, "ClickHouse cannot reach a server that it needs"},
	279: {Unreachable, "ClickHouse cannot reach a shard of the Distributed table"},
	225: {Replication, "ClickHouse has no Keeper: look at system.zookeeper_connection"},
	999: {Replication, "ClickHouse has trouble with Keeper: look at system.zookeeper_connection"},
	285: {Replication, "too few replicas of the facts table are alive for the quorum"},
	286: {Replication, "the quorum of an earlier insert into the facts table is not reached yet"},
	319: {Replication, "ClickHouse lost its session with Keeper during the insert"},
	289: {Replication, "a replica of the facts table lags too far behind"},
	701: {WrongTable, "ClickHouse does not know the cluster of price.cluster"},
	158: {TooMuch, "the query would read more rows than it may"},
	307: {TooMuch, "the query would read more bytes than it may"},
	396: {TooMuch, "the query would answer with more rows than it may"},
	115: {BadSettings, "ClickHouse does not know a setting that was sent: check the parameters in clickhouse.dsn"},
	452: {BadSettings, "the ClickHouse profile of the user forbids a setting that inserts need (async_insert = 0)"},
	439: {Busy, "ClickHouse cannot start a thread: its limits of processes or memory are too low"},
	236: {Unreachable, "ClickHouse is shutting down"},
}

// rejections are the codes by which the server refuses a row for its values.
var rejections = []int32{ //nolint:gochecknoglobals // a list that nothing writes
	469, // VIOLATED_CONSTRAINT
	407, // DECIMAL_OVERFLOW
	69,  // ARGUMENT_OUT_OF_BOUND
	131, // TOO_LARGE_STRING_SIZE
	321, // VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE
	349, // CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN
	395, // FUNCTION_THROW_IF_VALUE_IS_NON_ZERO, of a materialized view
}

// rejected returns the server's words if it refuses rows for their values.
func rejected(err error) (string, bool) {
	var e *ch.Exception
	if errors.As(err, &e) && slices.Contains(rejections, e.Code) {
		return oneLine(e.Message), true
	}
	return "", false
}

// tooManyPartitions tells whether one insert spanned more partitions than the server takes.
func tooManyPartitions(err error) bool {
	var e *ch.Exception
	return errors.As(err, &e) && e.Code == 252 && strings.Contains(e.Message, "max_partitions_per_insert_block")
}

// Explain turns an error of the driver into an Outage. Errors of a context that ended before the statement's own bound are
// returned as they are; nil stays nil. doing is what was being done, with its bound: "insert 1000 facts within 30s".
func Explain(err error, doing string) error {
	if err == nil {
		return nil
	}
	var already *Outage
	if errors.As(err, &already) {
		return err
	}
	var e *ch.Exception
	var op *ch.OpError
	var dial *dialError
	switch {
	case tooManyPartitions(err):
		return &Outage{TooManyMonths, "ClickHouse takes no insert that spans so many months: raise max_partitions_per_insert_block", err}
	case errors.As(err, &e):
		if m, ok := meanings[e.Code]; ok {
			return &Outage{m.kind, m.what, err}
		}
		return &Outage{Unknown, fmt.Sprintf("ClickHouse could not %s", doing), err}
	case errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &dial) && untrusted(err):
		return &Outage{Unreachable, "the certificate of ClickHouse is not trusted: check secure, tls_ca_file and the host in clickhouse.dsn", err}
	case errors.As(err, &dial):
		return &Outage{Unreachable, "ClickHouse cannot be reached", err}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, ch.ErrAcquireConnTimeout), isTimeout(err):
		return &Outage{TimedOut, fmt.Sprintf("ClickHouse did not %s", doing), err}
	case brokenConnection(err):
		return &Outage{Unreachable, "the connection to ClickHouse broke", err}
	case errors.As(err, &op):
		return &Outage{WrongTable, "the columns of the ClickHouse table of the price facts are not those of the contract: compare them with `vitrina migrate status`", err}
	}
	return &Outage{Unknown, fmt.Sprintf("ClickHouse could not %s", doing), err}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

func brokenConnection(err error) bool {
	var op *net.OpError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, ch.ErrConnectionClosed) || errors.As(err, &op)
}

func untrusted(err error) bool {
	var verify *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var record tls.RecordHeaderError
	return errors.As(err, &verify) || errors.As(err, &authority) || errors.As(err, &host) || errors.As(err, &record)
}
