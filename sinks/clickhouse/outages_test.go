package clickhouse

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/backoff"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
	"github.com/pin-marketplace/vitrina/sinks/batch"
)

// pipeline is a sink behind its batcher, with waits short enough for tests; the batcher's own tests hold 1 s to 60 s.
type pipeline struct {
	*batch.Batcher[Row]
	letters letters
	log     logBuffer
	retries atomic.Int64
	settled chan error
}

func run(t *testing.T, conn *Conn) *pipeline {
	t.Helper()
	p := &pipeline{settled: make(chan error, 100000)}
	var err error
	p.Batcher, err = batch.New(batch.Config{Name: "price", MaxItems: 100, MaxWait: 20 * time.Millisecond, Buffer: 1000, BufferBytes: 1 << 20, DrainTimeout: time.Second,
		Backoff: backoff.Config{Min: 10 * time.Millisecond, Max: 50 * time.Millisecond}},
		NewFactSink(conn, &p.letters, nil, p.log.events(), Metrics{}, time.Now).Flush, slog.New(slog.NewJSONHandler(&p.log, nil)),
		batch.Metrics{Retry: func() { p.retries.Add(1) }})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	finished := make(chan error, 1)
	go func() { finished <- p.Run(ctx) }()
	t.Cleanup(func() { stop(); require.NoError(t, <-finished) })
	return p
}

func (p *pipeline) submit(t *testing.T, batch []Row) {
	t.Helper()
	for _, r := range batch {
		require.NoError(t, p.Submit(t.Context(), item(r, func(err error) { p.settled <- err })))
	}
}

func item(r Row, done func(error)) batch.Item[Row] { return batch.Item[Row]{Value: r, Done: done} }

func (p *pipeline) await(t *testing.T, n int) {
	t.Helper()
	for range n {
		select {
		case err := <-p.settled:
			require.NoError(t, err)
		case <-time.After(30 * time.Second):
			log := p.log.String()
			require.FailNow(t, "facts are still not written", "%s", log[:min(len(log), 4000)])
		}
	}
}

// TestAnOutageIsSaidInOneSentenceRetriedAndSurvived breaks a real server in every way that it can be broken in.
func TestAnOutageIsSaidInOneSentenceRetriedAndSurvived(t *testing.T) {
	for name, tc := range map[string]struct{ breakIt, mendIt, says string }{
		"table missing": {"RENAME TABLE FACTS TO FACTS_away", "RENAME TABLE FACTS_away TO FACTS", "the ClickHouse table of the price facts does not exist: run `vitrina migrate up`"},
		"read-only":     {"ALTER TABLE FACTS MODIFY SETTING table_readonly = 1", "ALTER TABLE FACTS RESET SETTING table_readonly", "table of the price facts is read-only"},
		"too many parts": {"SYSTEM STOP MERGES FACTS; ALTER TABLE FACTS MODIFY SETTING parts_to_throw_insert = 1, parts_to_delay_insert = 1, max_delay_to_insert = 1", "ALTER TABLE FACTS RESET SETTING parts_to_throw_insert, parts_to_delay_insert",
			"too many parts: merges do not keep up"},
		"disk full": {"ALTER TABLE FACTS MODIFY SETTING min_free_disk_bytes_to_perform_insert = 1000000000000000", "ALTER TABLE FACTS RESET SETTING min_free_disk_bytes_to_perform_insert",
			"no room left on its disks"},
		"column missing":         {"ALTER TABLE FACTS DROP COLUMN LayoutId", "ALTER TABLE FACTS ADD COLUMN LayoutId Int64 AFTER LayoutGroupId", "lacks a column"},
		"column of another type": {"ALTER TABLE FACTS MODIFY COLUMN LayoutId String", "ALTER TABLE FACTS MODIFY COLUMN LayoutId Int64", "columns of the ClickHouse table"},
	} {
		t.Run(name, func(t *testing.T) {
			_, conn := migrated(t, "")
			operator := opened(t, conn.cfg)
			do := func(statement string) {
				t.Helper()
				for one := range strings.SplitSeq(statement, "; ") {
					exec(t, operator, strings.ReplaceAll(one, "FACTS_away", "`"+operator.database+"`.away"))
				}
			}
			p := run(t, conn)
			p.submit(t, rows(0, 50))
			p.await(t, 50)
			do(tc.breakIt)
			p.submit(t, rows(50, 250))
			require.Eventually(t, func() bool { return p.retries.Load() >= 4 }, 20*time.Second, 5*time.Millisecond)
			require.Empty(t, p.settled, "no commit is released while ClickHouse has not acknowledged")
			do(tc.mendIt)
			p.await(t, 250)
			require.Equal(t, 300, count(t, operator, "DISTINCT FactId"))
			require.Zero(t, p.letters.count(), "an outage sends nothing to the dead letters")
			require.Contains(t, p.log.String(), tc.says)
			require.Equal(t, 1, strings.Count(p.log.String(), `"event":"failed"`), "one line a minute: %s", p.log.String())
			require.Equal(t, 1, strings.Count(p.log.String(), `"event":"recovered"`))
		})
	}
}

func TestAServerThatDiesAndComesBackLosesNothing(t *testing.T) {
	server := devtest.ClickHouseServer(t)
	dsn, err := server.CreateDatabase(t.Context(), "pin_analytics")
	require.NoError(t, err)
	cfg := Config{DSN: dsn, DialTimeout: time.Second, InsertTimeout: 5 * time.Second}
	_, err = Migrate(t.Context(), cfg)
	require.NoError(t, err)
	p := run(t, opened(t, cfg))
	const n = 20000
	var feeding sync.WaitGroup
	feeding.Go(func() { p.submit(t, rows(0, n)) })
	for kill := 1; kill <= 3; kill++ {
		p.await(t, n/10) // inserts are under way
		require.NoError(t, server.Kill())
		tries := p.retries.Load()
		require.Eventually(t, func() bool { return p.retries.Load() > tries+2 }, 20*time.Second, 5*time.Millisecond)
		require.NoError(t, server.Restart(t.Context()))
	}
	feeding.Wait()
	p.await(t, n-3*n/10)
	require.Zero(t, p.letters.count())
	require.Contains(t, p.log.String(), "ClickHouse")
	conn := opened(t, cfg)
	require.Equal(t, n, count(t, conn, "DISTINCT FactId"))
	exec(t, conn, "OPTIMIZE TABLE FACTS FINAL")
	got := readAll(t, conn, "")
	for _, r := range rows(0, n) {
		require.NoError(t, same(r.Fact, got[r.Fact.FactID]))
	}
}

// through returns the DSN with other addresses, and the address it had.
func through(t *testing.T, dsn string, addrs ...string) (changed, was string) {
	t.Helper()
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	was, u.Host = u.Host, strings.Join(addrs, ",")
	return u.String(), was
}

func TestASlowServerIsATimeoutAndThenSurvived(t *testing.T) {
	_, direct := migrated(t, "")
	_, was := through(t, direct.cfg.DSN, "x")
	px := newProxy(t, was)
	dsn, _ := through(t, direct.cfg.DSN, px.addr())
	p := run(t, opened(t, Config{DSN: dsn, InsertTimeout: 150 * time.Millisecond, DialTimeout: 150 * time.Millisecond}))
	p.submit(t, rows(0, 10))
	p.await(t, 10)
	px.stall()
	p.submit(t, rows(10, 100))
	require.Eventually(t, func() bool { return p.retries.Load() >= 3 }, 20*time.Second, 5*time.Millisecond)
	require.Empty(t, p.settled)
	require.Contains(t, p.log.String(), "ClickHouse did not take 100 facts within 150ms")
	px.pass()
	p.await(t, 100)
	px.cut() // idle connections too
	p.submit(t, rows(110, 10))
	p.await(t, 10)
	require.Equal(t, 120, count(t, direct, "DISTINCT FactId"))
	require.Zero(t, p.letters.count())
}

func TestAHangingInsertEndsWithItsContext(t *testing.T) {
	_, direct := migrated(t, "")
	_, was := through(t, direct.cfg.DSN, "x")
	px := newProxy(t, was)
	dsn, _ := through(t, direct.cfg.DSN, px.addr())
	s := sink(opened(t, Config{DSN: dsn, InsertTimeout: time.Hour}), nil, &logBuffer{}, Metrics{})
	require.NoError(t, s.Flush(t.Context(), rows(0, 1)))
	px.stall()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- s.Flush(ctx, rows(1, 10)) }()
	cancel()
	select {
	case err := <-result:
		require.ErrorIs(t, err, context.Canceled)
	case <-time.After(10 * time.Second):
		require.FailNow(t, "a partition that is given up must not wait for ClickHouse")
	}
}

func TestEveryAnswerOfAServerIsASentence(t *testing.T) {
	for code, want := range map[int32]Kind{516: LoginRefused, 192: LoginRefused, 81: NoDatabase, 497: NotAllowed, 164: ReadOnly, 242: ReadOnly, 252: TooManyParts, 243: DiskFull,
		241: OutOfMemory, 202: Busy, 159: TimedOut, 999: Replication, 285: Replication, 60: NoTable, 452: BadSettings, 701: WrongTable, 236: Unreachable, 424242: Unknown} {
		t.Run(strconv.Itoa(int(code)), func(t *testing.T) {
			conn := opened(t, Config{DSN: "clickhouse://user:s3cr3t@" + refusing(t, code, "the server's words") + "/pin_analytics"})
			err := sink(conn, nil, &logBuffer{}, Metrics{}).Flush(t.Context(), rows(0, 1))
			var o *Outage
			require.ErrorAs(t, err, &o)
			require.Equal(t, want, o.Kind, err.Error())
			require.Contains(t, err.Error(), "the server's words")
			require.NotContains(t, err.Error(), "\n")
			require.NotContains(t, err.Error(), "s3cr3t")
		})
	}
}

func TestARefusedLoginLeavesNoConnectionOpen(t *testing.T) {
	closed := make(chan struct{}, 10)
	addr := refusingUntil(t, 516, "no", func() { closed <- struct{}{} })
	s := sink(opened(t, Config{DSN: "clickhouse://user:s3cr3t@" + addr + "/pin_analytics"}), nil, &logBuffer{}, Metrics{})
	for range 10 {
		require.Error(t, s.Flush(t.Context(), rows(0, 1)))
		select {
		case <-closed:
		case <-time.After(5 * time.Second):
			require.FailNow(t, "the connection is still open")
		}
	}
}

func TestAnAddressThatCannotWorkIsLeftForAnother(t *testing.T) {
	closed := func(t *testing.T) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.NoError(t, l.Close())
		return l.Addr().String()
	}
	for name, first := range map[string]func(*testing.T) string{
		"nobody listens":      closed,
		"it never answers":    silent,
		"it refuses a login":  func(t *testing.T) string { return refusing(t, 516, "no") },
		"it is shutting down": func(t *testing.T) string { return refusing(t, 236, "aborted") },
	} {
		t.Run(name, func(t *testing.T) {
			_, direct := migrated(t, "")
			_, was := through(t, direct.cfg.DSN, "x")
			dsn, _ := through(t, direct.cfg.DSN, first(t), was)
			p := run(t, opened(t, Config{DSN: dsn, DialTimeout: 300 * time.Millisecond}))
			p.submit(t, rows(0, 100))
			p.await(t, 100)
			require.Equal(t, 100, count(t, direct, ""))
		})
	}
	t.Run("it hangs in the middle of the work", func(t *testing.T) {
		_, direct := migrated(t, "")
		_, was := through(t, direct.cfg.DSN, "x")
		px := newProxy(t, was)
		dsn, _ := through(t, direct.cfg.DSN, px.addr(), was)
		conn := opened(t, Config{DSN: dsn, InsertTimeout: 500 * time.Millisecond})
		p := run(t, conn)
		p.submit(t, rows(0, 10))
		p.await(t, 10)
		px.stall()
		p.submit(t, rows(10, 10))
		p.await(t, 10)
	})
}

func TestTLS(t *testing.T) {
	_, direct := migrated(t, "")
	_, was := through(t, direct.cfg.DSN, "x")
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	ca, keyFile := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600))
	parsed, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	clients := x509.NewCertPool()
	clients.AddCert(parsed)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, ClientCAs: clients,
		ClientAuth: tls.RequireAndVerifyClientCert})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", was)
			if err != nil {
				_ = client.Close()
				continue
			}
			go func() { _, _ = io.Copy(server, client); _ = server.Close() }()
			go func() { _, _ = io.Copy(client, server); _ = client.Close() }()
		}
	}()
	dsn, _ := through(t, direct.cfg.DSN, l.Addr().String())
	files := url.Values{"secure": {"true"}, "tls_ca_file": {ca}, "tls_cert_file": {ca}, "tls_key_file": {keyFile}}
	require.NoError(t, sink(opened(t, Config{DSN: dsn + "?" + files.Encode()}), nil, &logBuffer{}, Metrics{}).Flush(t.Context(), rows(0, 10)))
	require.Equal(t, 10, count(t, direct, ""))

	err = sink(opened(t, Config{DSN: dsn + "?secure=true"}), nil, &logBuffer{}, Metrics{}).Flush(t.Context(), rows(0, 10))
	require.ErrorContains(t, err, "the certificate of ClickHouse is not trusted")
	for params, want := range map[string]string{
		"?tls_ca_file=" + ca:                          "not secure=true",
		"?secure=true&tls_ca_file=/nowhere":           "/nowhere",
		"?secure=true&tls_ca_file=" + keyFile:         "no PEM certificate",
		"?secure=true&tls_cert_file=" + ca:            "needed together",
		"?secure=true&tls_cert_file=x&tls_key_file=y": "tls_cert_file",
	} {
		_, err := Open(Config{DSN: dsn + params})
		require.ErrorContains(t, err, want)
	}
}

func TestAnUnreadableDSNShowsNoSecret(t *testing.T) {
	for _, dsn := range []string{"clickhouse://user:s3cr3t/x@host:9000/db", "clickhouse://user:s3cr3t@:port/db", "%zz://user:s3cr3t@h", "s3cr3t", "clickhouse://u:s3cr3t@h/db?x=%zz",
		"http://u:s3cr3t@h:8123/db", "clickhouse://u:s3cr3t@h/db?dial_timeout=s3cr3t", ""} {
		_, err := Open(Config{DSN: dsn})
		require.Error(t, err, dsn)
		require.NotContains(t, err.Error(), "s3cr3t")
	}
}
