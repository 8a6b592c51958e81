// Package harness runs real instances of the program as processes of their own, against a real Apache Kafka, PostgreSQL and
// ClickHouse, so that tests can kill any of them. It waits for conditions, never for times.
package harness

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/pin-marketplace/vitrina/internal/backoff"
	"github.com/pin-marketplace/vitrina/internal/devstack"
	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/test/model"
	"github.com/pin-marketplace/vitrina/test/observe"
)

// The topics of the contracts, written out: a test must notice when the program uses others.
const (
	Purchases = "pin.promotion.purchase-changed.v1"
	Views     = "pin.user-activity.property-object-view-ended.v1"
	Prices    = "pin.chessboard.property-object-price-changed.v1"

	PromotionDLQ  = "pin.catalog.promotion-boost-dlq.v1"
	PopularityDLQ = "pin.catalog.popularity-dlq.v1"
	PriceDLQ      = "pin.invest-analytics.price-history-dlq.v1"

	AdminToken = "harness-admin-token"
)

// System is the three servers, schemas and topics made, and the instances that run on them.
type System struct {
	t          testing.TB
	bin        string
	dir        string
	Kafka      *devstack.Kafka
	Postgres   *devstack.Postgres
	ClickHouse *devstack.ClickHouse
	Pool       *pgxpool.Pool
	clickhouse string // DSN
	env        []string
	personal   *regexp.Regexp
}

// Start starts the servers, each on an empty directory, runs `vitrina migrate up` and `vitrina topics apply`, and stops everything
// when the test ends. env are further variables of each instance.
func Start(t testing.TB, env ...string) *System {
	t.Helper()
	s := &System{t: t, bin: os.Getenv("VITRINA_BIN"), dir: t.TempDir(), env: env, personal: generate.PersonalValues()}
	if s.bin == "" {
		t.Fatal("VITRINA_BIN must name the program to test: run `make test-e2e` or `make chaos`, or build it with `make build` and export VITRINA_BIN=$PWD/bin/vitrina")
	}
	ctx := t.Context()
	g, start := errgroup.WithContext(ctx)
	g.Go(func() (err error) { s.Kafka, err = devstack.StartKafka(start, devstack.Options{}); return err })
	g.Go(func() (err error) { s.Postgres, err = devstack.StartPostgres(start, devstack.Options{}); return err })
	g.Go(func() (err error) {
		s.ClickHouse, err = devstack.StartClickHouse(start, devstack.Options{AutoRestart: true})
		return err
	})
	err := g.Wait()
	t.Cleanup(func() {
		stop, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if s.Pool != nil {
			s.Pool.Close()
		}
		var errs []error
		if s.Kafka != nil {
			errs = append(errs, s.Kafka.Stop(stop))
		}
		if s.Postgres != nil {
			errs = append(errs, s.Postgres.Stop(stop))
		}
		if s.ClickHouse != nil {
			errs = append(errs, s.ClickHouse.Stop(stop))
		}
		if err := errors.Join(errs...); err != nil {
			t.Errorf("stop the servers: %v", err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if s.Pool, err = pgxpool.New(ctx, s.Postgres.DSN()); err != nil {
		t.Fatal(err)
	}
	if s.clickhouse, err = s.ClickHouse.CreateDatabase(ctx, "pin_analytics"); err != nil {
		t.Fatal(err)
	}
	s.CreateTopics(map[string]int32{Purchases: 3, Views: 6, Prices: 3})
	s.Run("migrate", "up")
	s.Run("topics", "apply")
	return s
}

// CreateTopics creates topics of other teams.
func (s *System) CreateTopics(topics map[string]int32) {
	s.t.Helper()
	client := s.client()
	defer client.Close()
	for topic, partitions := range topics {
		if _, err := kadm.NewClient(client).CreateTopic(s.t.Context(), partitions, 1, nil, topic); err != nil {
			s.t.Fatalf("create topic %s: %v", topic, err)
		}
	}
}

func (s *System) client(opts ...kgo.Opt) *kgo.Client {
	s.t.Helper()
	client, err := kgo.NewClient(append(s.KgoOpts(), opts...)...)
	if err != nil {
		s.t.Fatal(err)
	}
	return client
}

// KgoOpts reach the broker.
func (s *System) KgoOpts() []kgo.Opt { return []kgo.Opt{kgo.SeedBrokers(s.Kafka.Brokers()...)} }

// Admin returns an admin client, closed when the test ends.
func (s *System) Admin() *kadm.Client {
	client := s.client()
	s.t.Cleanup(client.Close)
	return kadm.NewClient(client)
}

// Environ is the environment of every command and instance.
func (s *System) Environ(extra ...string) []string {
	// The program refuses variables it does not know, so those of the test run itself are not handed on.
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "VITRINA_") })
	env = append(env,
		"VITRINA_KAFKA_BROKERS="+s.Kafka.Brokers()[0], "VITRINA_POSTGRES_DSN="+s.Postgres.DSN(), "VITRINA_CLICKHOUSE_DSN="+s.clickhouse,
		"VITRINA_HTTP_ADDR=127.0.0.1:0", "VITRINA_ADMIN_TOKEN="+AdminToken, "VITRINA_KAFKA_SESSION_TIMEOUT=10s",
		"VITRINA_POPULARITY_RETRY_DELAYS=1s,2s,4s,8s,16s,32s", "VITRINA_PROMOTION_RECONCILE_INTERVAL=2s", "VITRINA_PRICE_BATCH_INTERVAL=1s",
		"VITRINA_BACKOFF_MAX=5s",
	)
	return append(append(env, s.env...), extra...)
}

// NothingPersonal fails the test where an output of the program holds a UserId, an AnonymousId or a SessionId.
func (s *System) NothingPersonal(what, output string) {
	s.t.Helper()
	if at := s.personal.FindStringIndex(output); at != nil {
		s.t.Errorf("%s holds a personal value: …%s…", what, output[max(0, at[0]-300):min(len(output), at[1]+100)])
	}
}

// Run runs a command of the program that must succeed and returns its output.
func (s *System) Run(args ...string) string {
	s.t.Helper()
	out, err := s.Try(args...)
	if err != nil {
		s.t.Fatalf("vitrina %v: %v\n%s", args, err, out)
	}
	return out
}

// Try runs a command of the program.
func (s *System) Try(args ...string) (string, error) { return s.TryUntil(s.t.Context(), args...) }

// TryUntil runs a command of the program and kills it with SIGKILL when ctx ends.
func (s *System) TryUntil(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.bin, args...)
	cmd.Env = s.Environ()
	cmd.Dir = s.dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	s.NothingPersonal(fmt.Sprintf("the output of vitrina %v", args), out.String())
	return out.String(), err
}

// Instance is one running `vitrina run`.
type Instance struct {
	s     *System
	Name  string
	state string
	env   []string
	args  []string

	mu      sync.Mutex
	cmd     *exec.Cmd
	exited  chan struct{}
	waitErr error
	addr    string
	started chan struct{}
	lines   []string
	stdout  bytes.Buffer // of all starts; to be read once the instance has ended
}

// Instance starts an instance with a state directory of its own; it is killed when the test ends, and nothing
// that it ever wrote may be personal.
func (s *System) Instance(name string, args []string, env ...string) *Instance {
	s.t.Helper()
	i := &Instance{s: s, Name: name, state: filepath.Join(s.dir, "state-"+name), env: env, args: args}
	i.Start()
	s.t.Cleanup(func() {
		i.Kill()
		s.NothingPersonal("the log of instance "+name, strings.Join(i.Log(), "\n"))
		s.NothingPersonal("the standard output of instance "+name, i.stdout.String())
		if s.t.Failed() {
			s.t.Logf("last lines of instance %s:\n%s", name, i.Tail(60))
		}
	})
	return i
}

// Start starts the instance again after it has ended.
func (i *Instance) Start() {
	i.s.t.Helper()
	cmd := exec.CommandContext(i.s.t.Context(), i.s.bin, append([]string{"run"}, i.args...)...)
	cmd.Dir = i.s.dir
	cmd.Env = i.s.Environ(append([]string{"VITRINA_STATE_DIR=" + i.state, "VITRINA_INSTANCE_ID=" + i.Name}, i.env...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		i.s.t.Fatal(err)
	}
	cmd.Stdout = &i.stdout
	if err := cmd.Start(); err != nil {
		i.s.t.Fatalf("start instance %s: %v", i.Name, err)
	}
	i.mu.Lock()
	i.cmd, i.exited, i.started, i.addr, i.waitErr = cmd, make(chan struct{}), make(chan struct{}), "", nil
	exited, started := i.exited, i.started
	i.mu.Unlock()
	go func() {
		defer close(exited)
		i.read(stderr, started)
		err := cmd.Wait()
		i.mu.Lock()
		i.waitErr = err
		i.mu.Unlock()
	}()
}

// read keeps the log, and finds in it where the instance listens.
func (i *Instance) read(r io.Reader, started chan struct{}) {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, 4<<20)
	seen := false
	for scanner.Scan() {
		line := scanner.Text()
		i.mu.Lock()
		i.lines = append(i.lines, line)
		i.mu.Unlock()
		var event struct{ Event, HTTP string }
		if !seen && json.Unmarshal([]byte(line), &event) == nil && event.Event == "started" {
			i.mu.Lock()
			i.addr = event.HTTP
			i.mu.Unlock()
			seen = true
			close(started)
		}
	}
}

// Log is everything the instance has logged, over all its starts.
func (i *Instance) Log() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return append([]string(nil), i.lines...)
}

// Tail is the end of the log.
func (i *Instance) Tail(n int) string {
	lines := i.Log()
	return string(bytes.Join(toBytes(lines[max(0, len(lines)-n):]), []byte("\n")))
}

func toBytes(lines []string) [][]byte {
	out := make([][]byte, len(lines))
	for n, l := range lines {
		out[n] = []byte(l)
	}
	return out
}

// Signal sends a signal.
func (i *Instance) Signal(sig syscall.Signal) {
	i.s.t.Helper()
	if err := i.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		i.s.t.Fatalf("signal %v to instance %s: %v", sig, i.Name, err)
	}
}

// Kill ends the instance with SIGKILL.
func (i *Instance) Kill() {
	i.s.t.Helper()
	i.Signal(syscall.SIGKILL)
	<-i.exited
}

// Stop sends SIGTERM and returns how long the instance took to end, and how it ended.
func (i *Instance) Stop() (time.Duration, error) {
	i.s.t.Helper()
	begun := time.Now()
	i.Signal(syscall.SIGTERM)
	select {
	case <-i.exited:
	case <-time.After(60 * time.Second):
		i.s.t.Fatalf("instance %s has not ended 60 s after SIGTERM:\n%s", i.Name, i.Tail(30))
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return time.Since(begun), i.waitErr
}

// LoseDisk removes the instance's state directory, as a new machine would have none. The instance must not run.
func (i *Instance) LoseDisk() {
	i.s.t.Helper()
	if err := os.RemoveAll(i.state); err != nil {
		i.s.t.Fatal(err)
	}
}

// StateDir is where the instance keeps its local stores.
func (i *Instance) StateDir() string { return i.state }

// URL is an address of the instance's HTTP server.
func (i *Instance) URL(path string) string {
	i.s.t.Helper()
	i.mu.Lock()
	started, exited := i.started, i.exited
	i.mu.Unlock()
	select {
	case <-started:
	case <-exited:
		i.s.t.Fatalf("instance %s ended before it listened:\n%s", i.Name, i.Tail(30))
	case <-time.After(60 * time.Second):
		i.s.t.Fatalf("instance %s does not listen:\n%s", i.Name, i.Tail(30))
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return "http://" + i.addr + path
}

// Get requests a path and returns status and body.
func (i *Instance) Get(path string) (int, []byte) {
	i.s.t.Helper()
	return i.Request(http.MethodGet, path, nil, "")
}

// Request makes a request; a token is sent as bearer.
func (i *Instance) Request(method, path string, body []byte, token string) (int, []byte) {
	i.s.t.Helper()
	req, err := http.NewRequestWithContext(i.s.t.Context(), method, i.URL(path), bytes.NewReader(body))
	if err != nil {
		i.s.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer func() { _ = resp.Body.Close() }()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, []byte(err.Error())
	}
	return resp.StatusCode, out
}

// WaitReady waits until every role of the instance is ready.
func (i *Instance) WaitReady() {
	i.s.t.Helper()
	i.s.Eventually(2*time.Minute, func() (bool, string) {
		status, body := i.Get("/readyz")
		return status == http.StatusOK, string(body)
	})
}

// Eventually polls until the condition holds and fails the test, with the condition's own words, when it does not within the
// limit, which is far above what a slow machine takes.
func (s *System) Eventually(limit time.Duration, condition func() (bool, string)) {
	s.t.Helper()
	deadline := time.Now().Add(limit)
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		ok, state := condition()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("not within %s: %s", limit, state)
		}
		select {
		case <-s.t.Context().Done():
			s.t.Fatalf("the test ended first: %s", state)
		case <-ticker.C:
		}
	}
}

// Facts opens ClickHouse; closed when the test ends.
func (s *System) Facts() driver.Conn {
	s.t.Helper()
	opts, err := ch.ParseDSN(s.clickhouse)
	if err != nil {
		s.t.Fatal(err)
	}
	conn, err := ch.Open(opts)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			s.t.Errorf("close ClickHouse: %v", err)
		}
	})
	return conn
}

// Send sends a generated stream, cards and all, and gives each item to the model once it is acknowledged.
func (s *System) Send(ctx context.Context, o generate.Options, m *model.Model, rate float64, partitioner string) error {
	writer, err := generate.NewKafkaWriter(s.KgoOpts(), partitioner, o.Seed)
	if err != nil {
		return err
	}
	defer writer.Close()
	_, err = generate.Send(ctx, generate.WithoutErrors(generate.Items(o)), generate.Destination{
		Records: writer, Cards: patientCards{generate.PostgresCards{DB: s.Pool}}, Rate: rate, Observe: func(item generate.Item) { item.Give(m) },
	})
	return err
}

// patientCards inserts cards although PostgreSQL is killed meanwhile, as the catalog would: an insert may be repeated.
type patientCards struct{ generate.PostgresCards }

func (p patientCards) WriteCards(ctx context.Context, cards []generate.Card) error {
	wait := backoff.New(backoff.Config{Min: 100 * time.Millisecond, Max: time.Second})
	for {
		err := p.PostgresCards.WriteCards(ctx, cards)
		if err == nil || wait.Tries() > 120 {
			return err
		}
		if stopped := wait.Wait(ctx); stopped != nil {
			return errors.Join(err, stopped)
		}
	}
}

// Actual reads what is there now.
func (s *System) Actual(ctx context.Context, facts driver.Conn) (*model.Actual, error) {
	cards, err := observe.Cards(ctx, s.Pool)
	if err != nil {
		return nil, err
	}
	late, ledger, err := observe.Views(ctx, s.Pool)
	if err != nil {
		return nil, err
	}
	rows, err := observe.Facts(ctx, facts)
	if err != nil {
		return nil, err
	}
	letters, err := observe.Letters(ctx, s.KgoOpts(), PromotionDLQ, PopularityDLQ, PriceDLQ)
	if err != nil {
		return nil, err
	}
	return &model.Actual{Cards: cards, Facts: rows, DeadLetters: letters, LateViews: late, Ledger: ledger}, nil
}

// WaitEqual waits until everything equals the model.
func (s *System) WaitEqual(limit time.Duration, want *model.Expected) {
	s.t.Helper()
	facts := s.Facts()
	s.Eventually(limit, func() (bool, string) {
		got, err := s.Actual(s.t.Context(), facts)
		if err != nil {
			return false, err.Error()
		}
		differences := model.Compare(want, got)
		state := fmt.Sprintf("%d differences", len(differences))
		for n, d := range differences {
			if n == 10 {
				break
			}
			state += "\n  " + d.String()
		}
		return len(differences) == 0, state
	})
}

// WaitCommitted waits until a group has committed every record of its topics.
func (s *System) WaitCommitted(limit time.Duration, group string, topics ...string) {
	s.t.Helper()
	admin := s.Admin()
	s.Eventually(limit, func() (bool, string) {
		lags, err := admin.Lag(s.t.Context(), group)
		if err != nil {
			return false, err.Error()
		}
		total := int64(0)
		for _, topic := range topics {
			for _, member := range lags[group].Lag[topic] {
				total += member.Lag
			}
		}
		return total == 0 && lags.Error() == nil, fmt.Sprintf("group %s has a lag of %d", group, total)
	})
}
