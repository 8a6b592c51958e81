package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/codecs"
	vitrina "github.com/pin-marketplace/vitrina/internal/app"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/sinks/deadletter"
)

const (
	bookID   = "0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01"
	bookView = `{"EventId":"` + bookID + `","ContractVersion":1,"Payload":{"PropertyObjectViewId":"VIEW","PropertyObjectId":"` + bookID + `","SessionId":"` + bookID + `","AnonymousId":"` + bookID +
		`","UserId":null,"ViewSource":"Catalog","ViewedAt":"2026-11-30T10:00:00Z","LastActivityAt":"2026-11-30T10:00:42Z","DurationSeconds":42}}`
	bookPrice = `{"PropertyObjectId":"` + bookID + `","DeveloperId":"` + bookID + `","ProjectId":"` + bookID + `","BuildingId":1,"LayoutGroupId":1,"LayoutId":1,"AreaTotal":50,"NewPrice":"100.00","CurrencyId":643,` +
		`"CurrencySnapshot":{"CurrencyId":643,"IsoCode":"RUB","Name":"r","Sign":"r"},"ChangedAt":"2025-01-01T00:00:00Z","Source":"Talent","Version":1}`
)

// words splits a line as a shell does, as far as runbooks go.
func words(line string) (out []string) {
	quotes := regexp.MustCompile(`"([^"]*)"|'([^']*)'`)
	for _, w := range regexp.MustCompile(`(?:"[^"]*"|'[^']*'|[^\s"'])+`).FindAllString(line, -1) {
		out = append(out, quotes.ReplaceAllString(w, "$1$2"))
	}
	return out
}

// TestRunbooksRun executes every command of these runbooks against a running instance, in their order.
func TestRunbooksRun(t *testing.T) {
	books := []string{"replay-dlq", "poison-flood", "lag-grows", "clickhouse-away"}
	commands := map[string][]string{}
	for _, name := range books {
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", "runbooks", name+".md"))
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			if command := strings.TrimSpace(line); strings.HasPrefix(line, "    ") && regexp.MustCompile(`^(vitrina|curl|psql) `).MatchString(command) {
				commands[name] = append(commands[name], command)
			}
		}
		require.NotEmpty(t, commands[name], name)
		for _, link := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(string(text), -1) {
			require.FileExists(t, filepath.Join("..", "..", "docs", "runbooks", link[1]), name)
		}
	}
	b := newBookEnv(t)
	for _, name := range books {
		for _, command := range commands[name] {
			t.Run(name+": "+command, func(t *testing.T) { b.execute(t, name, command) })
		}
	}
}

type bookEnv struct {
	environ []string
	cfg     *config.Config
	addr    string
}

func newBookEnv(t *testing.T) *bookEnv {
	t.Helper()
	brokers := devtest.Embedded(t)
	b := &bookEnv{environ: []string{
		"VITRINA_KAFKA_BROKERS=" + strings.Join(brokers, ","), "VITRINA_POSTGRES_DSN=" + devtest.Postgres(t), "VITRINA_CLICKHOUSE_DSN=" + devtest.ClickHouse(t),
		"VITRINA_STATE_DIR=" + t.TempDir(), "VITRINA_HTTP_ADDR=127.0.0.1:0", "VITRINA_ADMIN_TOKEN=t0ken", "VITRINA_BACKOFF_MIN=50ms", "VITRINA_BACKOFF_MAX=500ms",
		"VITRINA_PRICE_BATCH_INTERVAL=50ms",
	}}
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	for _, c := range config.Consumers() {
		_, err := kadm.NewClient(client).CreateTopic(t.Context(), 2, 1, nil, c.Topic)
		require.NoError(t, err)
	}
	for _, args := range [][]string{{"migrate", "up"}, {"topics", "apply"}} {
		code, _, errs := runProgram(t, b.environ, args...)
		require.Zero(t, code, errs)
	}
	b.cfg, err = config.Load(config.Source{Environ: b.environ, Flags: map[string]string{}})
	require.NoError(t, err)
	b.sql(t, `INSERT INTO catalog.project_cards (id, status) VALUES ('`+bookID+`', 'Published')`)
	b.sql(t, `INSERT INTO catalog.property_object_cards (id, project_id, status) VALUES ('`+bookID+`', '`+bookID+`', 'Published')`)
	letter := func(consumer int, code codecs.Code, value string) {
		c := config.Consumers()[consumer]
		r := deadletter.Encode(c.DLQ, deadletter.Letter{Record: &record.Record{ID: record.ID{Topic: c.Topic}, Key: []byte(bookID), Value: []byte(value)}, Code: code, Reason: "r"}, time.Now())
		require.NoError(t, client.ProduceSync(t.Context(), r).FirstErr())
	}
	// 0@0 of each topic, which the books name.
	letter(1, codecs.CodePropertyObjectNotFound, strings.ReplaceAll(bookView, "VIEW", uuid.NewString()))
	letter(2, codecs.CodeInvalidField, `{}`)
	b.start(t)
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("prices.jsonl", []byte(bookPrice+"\n"), 0o600))
	return b
}

// start runs an instance until the test ends.
func (b *bookEnv) start(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	started, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- serve(ctx, b.cfg, slog.New(slog.DiscardHandler), nil, config.Watcher{}, func(addr string, _ *vitrina.App) { started <- addr })
	}()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	select {
	case b.addr = <-started:
	case err := <-ended:
		ended <- err
		t.Fatal(err)
	}
	require.Eventually(t, func() bool { return b.ask(t, http.MethodGet, "http://"+b.addr+"/readyz", "", nil) == http.StatusOK }, time.Minute, 200*time.Millisecond)
}

func (b *bookEnv) sql(t *testing.T, statement string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), b.cfg.Postgres.DSN.Reveal())
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), statement)
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
}

func (b *bookEnv) ask(t *testing.T, method, url, body string, headers http.Header) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	req.Header = headers
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	if res.StatusCode != http.StatusOK {
		t.Logf("%s %s: %d %s", method, url, res.StatusCode, text)
	}
	return res.StatusCode
}

func (b *bookEnv) execute(t *testing.T, book, command string) {
	args := words(command)
	switch args[0] {
	case "vitrina":
		event := strings.ReplaceAll(bookView, "VIEW", bookID)
		if book == "poison-flood" {
			event = `{"EventId":"` + bookID + `","ContractVersion":1,"Payload":` + bookPrice + `}`
		}
		require.NoError(t, os.WriteFile("event.json", []byte(event), 0o600))
		code, out, errs := runProgram(t, b.environ, args[1:]...)
		require.Zero(t, code, "%s\n%s", out, errs)
		require.NotEmpty(t, out+errs)
	case "psql":
		b.sql(t, args[len(args)-1])
	default:
		method, body, headers := http.MethodGet, "", http.Header{}
		for i, a := range args[:len(args)-1] {
			switch a {
			case "-X":
				method = args[i+1]
			case "-d":
				body = args[i+1]
			case "-H":
				name, value, _ := strings.Cut(strings.ReplaceAll(args[i+1], "$VITRINA_ADMIN_TOKEN", "t0ken"), ": ")
				headers.Set(name, value)
			}
		}
		url := strings.ReplaceAll(args[len(args)-1], "127.0.0.1:8080", b.addr)
		require.Equal(t, http.StatusOK, b.ask(t, method, url, body, headers))
	}
}
