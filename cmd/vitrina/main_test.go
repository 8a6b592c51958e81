package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/test/model"
)

type exited int

// runProgram runs a command line as the operating system would.
func runProgram(t *testing.T, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	defer func() {
		if e, ok := recover().(exited); ok {
			code, stdout, stderr = int(e), out.String(), errs.String()
		}
	}()
	code = execute(t.Context(), args, process{
		stdin: strings.NewReader(""), stdout: &out, stderr: &errs, environ: environ,
		exit: func(n int) { panic(exited(n)) }, // it must not return; recovered above
	})
	return code, out.String(), errs.String()
}

func TestEveryCommandIsExplainedWithAnExample(t *testing.T) {
	parser, err := kong.New(&commands{})
	require.NoError(t, err)
	for _, node := range parser.Model.Leaves(false) {
		code, out, _ := runProgram(t, nil, append(strings.Fields(node.Path()), "--help")...)
		require.Zero(t, code, node.Path())
		require.Contains(t, out, "Example", node.Path())
		require.Contains(t, out, "vitrina "+node.Path(), node.Path())
		require.NotEmpty(t, node.Help, node.Path())
		for _, f := range node.Flags {
			require.NotEmpty(t, f.Help, "%s --%s", node.Path(), f.Name)
		}
	}
	code, out, _ := runProgram(t, nil, "--help")
	require.Zero(t, code)
	require.Contains(t, out, "Exit codes")
}

func TestSettingFlagsNameSettings(t *testing.T) {
	known := map[string]bool{}
	for _, k := range config.Keys() {
		known[k.Path] = true
	}
	fields := reflect.TypeFor[globals]()
	for i := range fields.NumField() {
		if key := fields.Field(i).Tag.Get("setting"); key != "" {
			require.True(t, known[key], key)
		}
	}
	_, out, _ := runProgram(t, []string{"VITRINA_HTTP_ADDR=:1", "VITRINA_LOG_LEVEL=warn"}, "config", "show", "-o", "json",
		"--http-addr", ":2", "--set", "price.batch_rows=7", "--set", "popularity.view_sources=A,B", "--kafka-brokers", "a:1,b:2")
	var values []config.Value
	require.NoError(t, json.Unmarshal([]byte(out), &values))
	got := map[string]string{}
	for _, v := range values {
		got[v.Key] = v.Value
	}
	require.Equal(t, ":2", got["http.addr"])
	require.Equal(t, "warn", got["log.level"])
	require.Equal(t, "7", got["price.batch_rows"])
	require.Equal(t, "A,B", got["popularity.view_sources"])
	require.Equal(t, "a:1,b:2", got["kafka.brokers"])
}

func TestExitCodes(t *testing.T) {
	for name, tc := range map[string]struct {
		environ []string
		args    []string
		code    int
		stderr  string
	}{
		"done":              {nil, []string{"version"}, 0, ""},
		"no command":        {nil, nil, 2, "--help"},
		"unknown command":   {nil, []string{"fly"}, 2, "fly"},
		"unknown flag":      {nil, []string{"version", "--fast"}, 2, "--fast"},
		"bad output":        {nil, []string{"version", "-o", "xml"}, 2, "table"},
		"bad variable":      {[]string{"VITRINA_KAFKA_BROKER=a:1"}, []string{"config", "show"}, 2, "VITRINA_KAFKA_BROKERS"},
		"bad setting":       {nil, []string{"config", "show", "--set", "price.batch_row=1"}, 2, "price.batch_rows"},
		"no such file":      {nil, []string{"check", "--config", "/nonexistent.yaml"}, 2, "/nonexistent.yaml"},
		"bad options":       {nil, []string{"generate", "--duplicates", "7", "--to", "-"}, 2, "duplicates"},
		"missing file":      {nil, []string{"generate", "--from", "/does/not/exist", "--to", "-"}, 1, "/does/not/exist"},
		"file to itself":    {nil, []string{"generate", "--from", "x", "--to", "x"}, 2, "same file"},
		"cards to nowhere":  {nil, []string{"generate", "--to", "-", "--cards"}, 2, "--cards"},
		"no such partition": {nil, []string{"generate", "--partitioner", "md5"}, 2, "murmur2"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := runProgram(t, tc.environ, tc.args...)
			require.Equal(t, tc.code, code, stderr)
			require.Contains(t, stderr, tc.stderr)
		})
	}
}

func TestNoSecretIsPrinted(t *testing.T) {
	environ := []string{
		"VITRINA_POSTGRES_DSN=postgres://u:hunter2@127.0.0.1:1/db?connect_timeout=2", "VITRINA_CLICKHOUSE_DSN=clickhouse://u:hunter2@127.0.0.1:9/db",
		"VITRINA_ADMIN_TOKEN=hunter2", "VITRINA_KAFKA_SASL_MECHANISM=PLAIN", "VITRINA_KAFKA_SASL_USERNAME=u", "VITRINA_KAFKA_SASL_PASSWORD=hunter2",
	}
	for _, args := range [][]string{
		{"config", "show"}, {"config", "show", "-o", "json"}, {"config", "show", "--set", "price.batch_rows=x"},
		{"generate", "--cards", "--views", "1"},
	} {
		_, stdout, stderr := runProgram(t, environ, args...)
		require.NotEmpty(t, stdout+stderr)
		require.NotContains(t, stdout+stderr, "hunter2", args)
	}
	_, stdout, _ := runProgram(t, environ, "config", "show")
	require.Contains(t, stdout, "***")
}

func TestReferenceCommandWritesTheDocument(t *testing.T) {
	document, err := os.ReadFile("../../docs/configuration.md")
	require.NoError(t, err)
	_, out, _ := runProgram(t, nil, "config", "reference")
	require.Equal(t, string(document), out)
}

func TestGenerateToFileAndOnToKafka(t *testing.T) {
	dir := t.TempDir()
	events, expect := filepath.Join(dir, "events.jsonl"), filepath.Join(dir, "expected.json")
	args := []string{"generate", "--views", "200", "--purchases", "100", "--prices", "100", "--objects", "100", "--malformed", "1", "--start", "2026-11-30T09:00:00Z"}
	code, out, stderr := runProgram(t, nil, append(args, "--to", events, "--expect", expect, "-o", "json")...)
	require.Zero(t, code, stderr)
	var sum generated
	require.NoError(t, json.Unmarshal([]byte(out), &sum))
	require.Equal(t, 120, sum.Cards)
	require.Positive(t, sum.Malformed)

	code, again, _ := runProgram(t, nil, append(args, "--to", "-")...)
	require.Zero(t, code)
	first, err := os.ReadFile(events)
	require.NoError(t, err)
	require.Equal(t, string(first), again, "same options, same stream")

	text, err := os.ReadFile(expect)
	require.NoError(t, err)
	var expected model.Expected
	require.NoError(t, json.Unmarshal(text, &expected))
	require.Len(t, expected.Views, 200)
	require.Len(t, expected.DeadLetters, sum.Malformed)

	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, config.TopicViewEnded, config.TopicPurchaseChanged, config.TopicPriceChanged))
	require.NoError(t, err)
	defer cluster.Close()
	brokers := strings.Join(cluster.ListenAddrs(), ",")
	code, out, stderr = runProgram(t, []string{"VITRINA_KAFKA_BROKERS=" + brokers}, "generate", "--from", events, "-o", "json")
	require.Zero(t, code, stderr)
	var sent generated
	require.NoError(t, json.Unmarshal([]byte(out), &sent))
	require.Equal(t, sum.ByTopic, sent.ByTopic)
}

// closedPipe is a standard output that nobody reads any more.
type closedPipe struct{}

func (closedPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// What could not be mended was lost when what was mended could not be printed.
func TestTopicsApplySaysWhatFailedAlthoughNothingCanBePrinted(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, config.TopicViewEnded, config.TopicPurchaseChanged))
	require.NoError(t, err)
	defer cluster.Close()
	var stderr bytes.Buffer
	code := execute(t.Context(), []string{"topics", "apply"}, process{
		stdout: closedPipe{}, stderr: &stderr, environ: []string{"VITRINA_KAFKA_BROKERS=" + strings.Join(cluster.ListenAddrs(), ",")},
	})
	require.Equal(t, 1, code)
	require.Contains(t, stderr.String(), config.TopicPriceChanged, "the source that is missing")
	require.Contains(t, stderr.String(), "broken pipe")
}

// A failure must not be introduced with "nothing to do".
func TestTopicsApplyThatFailsSaysNothingElse(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	defer cluster.Close()
	code, out, stderr := runProgram(t, []string{"VITRINA_KAFKA_BROKERS=" + strings.Join(cluster.ListenAddrs(), ",")}, "topics", "apply")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, config.TopicPriceChanged)
	require.Empty(t, out)
}

// Every return before the end left the exporter's goroutine behind, and its last spans unsent.
func TestAnInstanceThatCannotStartStopsItsTracing(t *testing.T) {
	t.Setenv("OTEL_TRACES_EXPORTER", "otlp") // the exporter reads the process's own environment
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, taken.Close()) }()
	cfg, err := config.Load(config.Source{Flags: map[string]string{"http.addr": taken.Addr().String(), "roles": "popularity", "state.dir": t.TempDir()}})
	require.NoError(t, err)
	before := goleak.IgnoreCurrent()
	err = serve(t.Context(), cfg, slog.New(slog.DiscardHandler), []string{"OTEL_TRACES_EXPORTER=otlp"}, config.Watcher{}, nil)
	require.ErrorContains(t, err, taken.Addr().String())
	goleak.VerifyNone(t, before)
}
