package clickhouse

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/shopspring/decimal"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
	"github.com/pin-marketplace/vitrina/sinks/deadletter"
)

func TestMain(m *testing.M) { os.Exit(devtest.Main(m)) }

// migrated returns the configuration and a connection of a fresh database that has the table.
func migrated(t *testing.T, params string) (Config, *Conn) {
	t.Helper()
	cfg := Config{DSN: devtest.ClickHouse(t) + params}
	_, err := Migrate(t.Context(), cfg)
	require.NoError(t, err)
	return cfg, opened(t, cfg)
}

func opened(t *testing.T, cfg Config) *Conn {
	t.Helper()
	conn, err := Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn
}

func exec(t *testing.T, conn *Conn, statement string) {
	t.Helper()
	require.NoError(t, conn.Exec(t.Context(), strings.ReplaceAll(statement, "FACTS", conn.Table())))
}

func count(t *testing.T, conn *Conn, what string) int {
	t.Helper()
	var n uint64
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count("+what+") FROM "+conn.Table()).Scan(&n))
	return int(n)
}

func fact(i int, at time.Time) *codecs.Fact {
	id := uuid.NewSHA1(uuid.NameSpaceOID, fmt.Append(nil, i))
	dev := uuid.NewSHA1(uuid.NameSpaceURL, id[:])
	return &codecs.Fact{FactID: id.String(), SourceEventID: id.String(), PropertyObjectID: uuid.NewSHA1(uuid.NameSpaceDNS, fmt.Append(nil, i%7)),
		DeveloperID: dev, TenantID: dev.String(), ProjectID: uuid.NewSHA1(uuid.NameSpaceX500, id[:]), BuildingID: int64(i) + 1, LayoutGroupID: 7, LayoutID: 9001,
		AreaTotal: decimal.New(5430, -2), OldPrice: decimal.NewNullDecimal(decimal.New(int64(i)+100, -2)), NewPrice: decimal.New(int64(i)+101, -2),
		NewPricePerMeter: decimal.New(int64(i)+102, -2), CurrencyID: 643, CurrencyIsoCode: "RUB", EventTime: at.UTC().Truncate(time.Second),
		ChangeSource: "talent-sync", TransformVersion: 1}
}

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func rows(from, n int) []Row {
	out := make([]Row, 0, n)
	for i := from; i < from+n; i++ {
		out = append(out, Row{Fact: fact(i, noon.Add(time.Duration(i)*time.Minute)),
			Record: &record.Record{ID: record.ID{Topic: "source", Partition: int32(i % 3), Offset: int64(i)}, Value: []byte("v")}})
	}
	return out
}

// letters keeps dead letters.
type letters struct {
	mu  sync.Mutex
	got []deadletter.Letter
	err error
}

func (l *letters) Write(_ context.Context, ls ...deadletter.Letter) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	l.got = append(l.got, ls...)
	return nil
}

func (l *letters) count() int { l.mu.Lock(); defer l.mu.Unlock(); return len(l.got) }

// logBuffer is a log that tests read while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *logBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}
func (s *logBuffer) String() string { s.mu.Lock(); defer s.mu.Unlock(); return s.b.String() }

func (s *logBuffer) events() *telemetry.EventLog {
	return telemetry.NewEventLog(slog.New(slog.NewJSONHandler(s, nil)), 0, time.Now)
}

func sink(conn *Conn, l *letters, log *logBuffer, m Metrics) *FactSink {
	return NewFactSink(conn, l, telemetry.NoTracing(), log.events(), m, time.Now)
}

// proxy stands before a server: it can stop passing bytes, or refuse connections.
type proxy struct {
	listener net.Listener
	target   string

	mu      sync.Mutex
	stalled chan struct{} // closed: bytes pass; open: they wait
	conns   []net.Conn
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{listener: l, target: target, stalled: make(chan struct{})}
	close(p.stalled)
	go p.accept()
	t.Cleanup(func() { _ = l.Close(); p.cut(); p.pass() })
	return p
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, client, server)
		p.mu.Unlock()
		go p.copy(client, server)
		go p.copy(server, client)
	}
}

func (p *proxy) copy(to, from net.Conn) {
	defer func() { _ = to.Close(); _ = from.Close() }()
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		gate := p.stalled
		p.mu.Unlock()
		<-gate
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *proxy) stall() { p.mu.Lock(); defer p.mu.Unlock(); p.stalled = make(chan struct{}) }

func (p *proxy) pass() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.stalled:
	default:
		close(p.stalled)
	}
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

// refusing is a server of the native protocol that answers every login with an exception.
func refusing(t *testing.T, code int32, message string) (addr string) {
	t.Helper()
	return refusingUntil(t, code, message, func() {})
}

// refusingUntil calls closed when a client has closed its connection.
func refusingUntil(t *testing.T, code int32, message string, closed func()) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	text := func(s string) []byte { return append([]byte{byte(len(s))}, s...) }
	answer := []byte{2, byte(code), byte(code >> 8), byte(code >> 16), byte(code >> 24)}
	answer = append(answer, text("DB::Exception")...)
	answer = append(answer, text(message)...)
	answer = append(answer, text("")...)
	answer = append(answer, 0)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				if _, err := c.Read(make([]byte, 4096)); err != nil {
					return
				}
				if _, err := c.Write(answer); err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, c)
				closed()
			}()
		}
	}()
	return l.Addr().String()
}

// silent accepts connections and never answers.
func silent(t *testing.T) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}
