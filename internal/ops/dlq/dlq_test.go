package dlq_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // sql.Open("pgx", …)
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
	"github.com/pin-marketplace/vitrina/internal/httpserver"
	"github.com/pin-marketplace/vitrina/internal/ops/dlq"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/sinks/deadletter"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

func TestMain(m *testing.M) { os.Exit(devtest.Main(m)) }

// The topics of the contracts, written out.
const (
	source  = "pin.user-activity.property-object-view-ended.v1"
	letters = "pin.catalog.popularity-dlq.v1"
)

const partitions = 3

type env struct {
	*dlq.Service
	t        *testing.T
	consumer config.Consumer
	client   *kgo.Client // produces, to the partition that a record names
	log      *bytes.Buffer
	mu       sync.Mutex
}

// Write makes env the log's writer: several goroutines log.
func (e *env) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.log.Write(p)
}

func newEnv(t *testing.T) *env {
	t.Helper()
	brokers, dsn := devtest.Embedded(t), devtest.Postgres(t)
	db, err := sql.Open("pgx", dsn)
	require.NoError(t, err)
	_, err = postgres.Migrate(t.Context(), db)
	require.NoError(t, err)
	require.NoError(t, db.Close())
	pool, err := postgres.NewPool(t.Context(), dsn, postgres.PoolOptions{LockTimeout: time.Second})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	kafka := stream.KafkaConfig{Brokers: brokers, ClientID: "test", Version: "2.8.0"}
	admin, err := stream.NewAdmin(kafka)
	require.NoError(t, err)
	t.Cleanup(admin.Close)
	_, err = admin.Kadm().CreateTopics(t.Context(), partitions, 1, nil, source, letters)
	require.NoError(t, err)
	e := &env{t: t, log: &bytes.Buffer{}, consumer: config.PopularityConsumer()}
	e.Service = &dlq.Service{
		Kafka: kafka, Admin: admin, Pool: pool, Clock: time.Now, MaxReturns: 2, Rate: 100_000, Instance: "i",
		Logger: slog.New(slog.NewJSONHandler(e, nil)),
	}
	e.connect()
	return e
}

// connect makes a producer that knows the topics as they are now.
func (e *env) connect() {
	e.t.Helper()
	var err error
	e.client, err = kgo.NewClient(append(e.Kafka.KgoOpts(), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	require.NoError(e.t, err)
	e.t.Cleanup(e.client.Close)
}

// dead writes letters 0 to n-1, made by the writer of the consumers. Letter i came from partition i % 3, offset i.
func (e *env) dead(n int) {
	e.t.Helper()
	var records []*kgo.Record
	for i := range n {
		r := deadletter.Encode(letters, deadletter.Letter{
			Record: &record.Record{
				ID: record.ID{Topic: source, Partition: int32(i % partitions), Offset: int64(i)}, Key: fmt.Appendf(nil, "key-%d", i),
				Value: fmt.Appendf(nil, `{"PropertyObjectViewId":"key-%d"}`, i), Headers: []record.Header{{Key: "own", Value: []byte{0, 1}}, {Key: "own"}},
			},
			Code: codecs.CodePropertyObjectNotFound, Reason: "no card", Attempts: 7,
		}, time.UnixMilli(1_700_000_000_000+int64(i)*1000))
		r.Partition = int32(i / 2 % partitions)
		records = append(records, r)
	}
	require.NoError(e.t, e.client.ProduceSync(e.t.Context(), records...).FirstErr())
}

// depth is how many letters wait or are parked.
func (e *env) depth() (n int64) {
	e.t.Helper()
	topics, err := e.Admin.Topics(e.t.Context(), letters)
	require.NoError(e.t, err)
	positions, err := e.Admin.GroupPositions(e.t.Context(), "nobody", letters)
	require.NoError(e.t, err)
	var from, to []int64
	for _, p := range positions[letters] {
		n += p.End - p.Start
		from, to = append(from, p.Start), append(to, p.End)
	}
	handled, err := dlq.Handled(e.t.Context(), e.Pool, topics[letters].ID, from, to)
	require.NoError(e.t, err)
	return n - handled
}

// returned reads the whole source topic.
func (e *env) returned() []*kgo.Record {
	e.t.Helper()
	return e.all(source)
}

func (e *env) all(topic string) (out []*kgo.Record) {
	e.t.Helper()
	ends, err := e.Admin.Kadm().ListEndOffsets(e.t.Context(), topic)
	require.NoError(e.t, err)
	total := 0
	ends.Each(func(o kadm.ListedOffset) { total += int(o.Offset) })
	client, err := kgo.NewClient(append(e.Kafka.KgoOpts(), kgo.ConsumeTopics(topic))...)
	require.NoError(e.t, err)
	defer client.Close()
	for len(out) < total {
		out = append(out, client.PollFetches(e.t.Context()).Records()...)
	}
	return out
}

func value(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

func TestListIsNewestFirstFilteredAndPaged(t *testing.T) {
	e := newEnv(t)
	page, err := e.List(t.Context(), e.consumer, dlq.Filter{}, 10, "")
	require.NoError(t, err)
	require.Empty(t, page.Items)
	const n = 700 // several chunks
	e.dead(n)
	var keys []string
	cursor := ""
	for pages := 0; ; pages++ {
		page, err := e.List(t.Context(), e.consumer, dlq.Filter{}, 60, cursor)
		require.NoError(t, err)
		require.Empty(t, page.Problems)
		for _, l := range page.Items {
			keys = append(keys, *l.Key)
		}
		if cursor = page.Next; cursor == "" {
			require.Equal(t, (n+59)/60, pages+1)
			break
		}
	}
	want := make([]string, n)
	for i := range want {
		want[n-1-i] = fmt.Sprintf("key-%d", i)
	}
	require.Equal(t, want, keys)

	for name, tc := range map[string]struct {
		filter dlq.Filter
		n      int
	}{
		"key":   {dlq.Filter{Key: "KEY-17"}, 1},
		"code":  {dlq.Filter{Code: "DATABASE_REJECTED"}, 0},
		"since": {dlq.Filter{Since: time.UnixMilli(1_700_000_000_000 + 690_000)}, 10},
		"until": {dlq.Filter{Until: time.UnixMilli(1_700_000_000_000 + 4_000)}, 5},
		"state": {dlq.Filter{State: dlq.StateParked}, 0},
	} {
		page, err := e.List(t.Context(), e.consumer, tc.filter, 1000, "")
		require.NoError(t, err, name)
		require.Len(t, page.Items, tc.n, name)
	}
	_, err = e.List(t.Context(), e.consumer, dlq.Filter{}, 10, "nonsense")
	require.ErrorIs(t, err, dlq.ErrCursor)
	_, err = e.Get(t.Context(), e.consumer, "0@1", "2@99999")
	var missing *dlq.NotFoundError
	require.ErrorAs(t, err, &missing)
	require.Equal(t, []string{"2@99999"}, missing.IDs)
}

func TestReplayPutsTheRecordBackAsItWasInOrder(t *testing.T) {
	e := newEnv(t)
	e.dead(60)
	dry, err := e.Replay(t.Context(), dlq.Request{Consumer: e.consumer, All: true, DryRun: true})
	require.NoError(t, err)
	require.Equal(t, 60, dry.Replayed)
	require.Empty(t, e.returned())
	require.EqualValues(t, 60, e.depth())

	one, err := e.Replay(t.Context(), dlq.Request{Consumer: e.consumer, IDs: []string{"2/3", "0@0", "2@3"}})
	require.NoError(t, err)
	require.Equal(t, 2, one.Replayed)
	report, err := e.Replay(t.Context(), dlq.Request{Consumer: e.consumer, All: true})
	require.NoError(t, err)
	require.Equal(t, 58, report.Replayed)
	require.Equal(t, 2, report.Skipped)
	require.True(t, report.Complete)

	got := e.returned()
	require.Len(t, got, 60)
	for _, r := range got {
		var i int
		_, err := fmt.Sscanf(string(r.Key), "key-%d", &i)
		require.NoError(t, err)
		require.EqualValues(t, i%partitions, r.Partition, "it goes where it came from")
		require.Equal(t, fmt.Appendf(nil, `{"PropertyObjectViewId":"key-%d"}`, i), r.Value)
		require.Equal(t, []kgo.RecordHeader{{Key: "own", Value: []byte{0, 1}}, {Key: "own"}, {Key: dlq.HeaderReturns, Value: []byte("1")}}, r.Headers)
	}
	again, err := e.Replay(t.Context(), dlq.Request{Consumer: e.consumer, All: true})
	require.NoError(t, err)
	require.Equal(t, 60, again.Skipped)
	require.Len(t, e.returned(), 60)
	require.Zero(t, e.depth())
	forced, err := e.Replay(t.Context(), dlq.Request{Consumer: e.consumer, IDs: []string{"0@0"}, Again: true})
	require.NoError(t, err)
	require.Equal(t, 1, forced.Replayed)
	require.Equal(t, 62, strings.Count(e.log.String(), "dead-letter-replayed")+1, "every act is in the log")
}

// TestInterruptedReplayGoesOn ends replays at random points, by their context and by a database that cannot take the note.
func TestInterruptedReplayGoesOn(t *testing.T) {
	e := newEnv(t)
	const n = 300
	e.dead(n)
	for _, stopAfter := range []int{1, 3} {
		ctx, cancel := context.WithCancel(t.Context())
		batches := 0
		_, err := e.Replay(ctx, dlq.Request{Consumer: e.consumer, All: true, Rate: 20, Progress: func(dlq.Report) {
			if batches++; batches == stopAfter {
				cancel()
			}
		}})
		cancel()
		require.ErrorIs(t, err, context.Canceled)
	}
	before := len(e.returned())
	require.Less(t, before, n)

	// Between the record and its note: what a crash there leaves.
	tx, err := e.Pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `LOCK TABLE vitrina.dead_letter_actions IN SHARE MODE`)
	require.NoError(t, err)
	report, err := e.Replay(t.Context(), dlq.Request{Consumer: e.consumer, IDs: idsOf(t, e, dlq.StateWaiting, 10)})
	require.Error(t, err)
	require.False(t, report.Complete)
	require.NoError(t, tx.Rollback(t.Context()))

	report, err = e.Replay(t.Context(), dlq.Request{Consumer: e.consumer, All: true})
	require.NoError(t, err)
	require.True(t, report.Complete)
	count := map[string]int{}
	for _, r := range e.returned() {
		count[string(r.Key)]++
	}
	require.Len(t, count, n, "none is lost")
	repeated := 0
	for _, c := range count {
		repeated += c - 1
	}
	require.LessOrEqual(t, repeated, 10, "only what was not noted is repeated")
	require.Empty(t, idsOf(t, e, dlq.StateWaiting, 1000))
}

func idsOf(t *testing.T, e *env, state string, limit int) (ids []string) {
	t.Helper()
	page, err := e.List(t.Context(), e.consumer, dlq.Filter{State: state}, limit, "")
	require.NoError(t, err)
	for _, l := range page.Items {
		ids = append(ids, l.ID)
	}
	return ids
}

// TestReplayNeverLoops: a consumer that dead-letters everything again, at once.
func TestReplayNeverLoops(t *testing.T) {
	e := newEnv(t)
	const n = 40
	e.dead(n)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		consumer, err := kgo.NewClient(append(e.Kafka.KgoOpts(), kgo.ConsumeTopics(source))...)
		if err != nil {
			return
		}
		defer consumer.Close()
		for ctx.Err() == nil {
			for _, r := range consumer.PollFetches(ctx).Records() {
				rec := &record.Record{ID: record.ID{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset}, Key: r.Key, Value: r.Value}
				for _, h := range r.Headers {
					rec.Headers = append(rec.Headers, record.Header(h))
				}
				dead := deadletter.Encode(letters, deadletter.Letter{Record: rec, Code: codecs.CodeDatabaseRejected, Reason: "again"}, time.Now())
				if err := e.client.ProduceSync(ctx, dead).FirstErr(); err != nil {
					return
				}
			}
		}
	})
	defer wg.Wait()
	defer stop()
	for round := 1; round <= 3; round++ {
		report, err := e.Replay(t.Context(), dlq.Request{Consumer: e.consumer, All: true, Rate: 200})
		require.NoError(t, err)
		require.True(t, report.Complete)
		if round <= 2 {
			require.Equal(t, n, report.Replayed, "round %d", round)
			require.Eventually(t, func() bool { return len(e.all(letters)) == n*(round+1) }, 20*time.Second, 50*time.Millisecond)
			continue
		}
		require.Equal(t, n, report.Parked)
		require.Zero(t, report.Replayed)
	}
	require.Len(t, e.returned(), 2*n)
	require.Len(t, idsOf(t, e, dlq.StateParked, 1000), n)
	require.EqualValues(t, n, e.depth(), "parked letters stay")
}

func TestDropHidesAndIsAudited(t *testing.T) {
	e := newEnv(t)
	e.dead(5)
	_, err := e.Drop(t.Context(), dlq.Request{Consumer: e.consumer, IDs: []string{"0@0"}, Reason: "  "})
	var invalid *dlq.InvalidError
	require.ErrorAs(t, err, &invalid)
	_, err = e.Drop(t.Context(), dlq.Request{Consumer: e.consumer, Reason: "x"})
	require.ErrorAs(t, err, &dlq.NothingError{})
	report, err := e.Drop(t.Context(), dlq.Request{Consumer: e.consumer, Filter: dlq.Filter{Key: "key-0"}, Reason: "test data", By: "me"})
	require.NoError(t, err)
	require.Equal(t, 1, report.Dropped)
	page, err := e.List(t.Context(), e.consumer, dlq.Filter{}, 10, "")
	require.NoError(t, err)
	require.Len(t, page.Items, 4)
	page, err = e.List(t.Context(), e.consumer, dlq.Filter{State: dlq.StateDropped}, 10, "")
	require.NoError(t, err)
	require.Equal(t, "test data", page.Items[0].Action.Reason)
	require.Equal(t, "me", page.Items[0].Action.By)
	require.Contains(t, e.log.String(), `"event":"dead-letter-dropped"`)
	replayed, err := e.Replay(t.Context(), dlq.Request{Consumer: e.consumer, All: true})
	require.NoError(t, err)
	require.Equal(t, 4, replayed.Replayed)
}

func TestLettersOfOtherConventions(t *testing.T) {
	e := newEnv(t)
	number := func(n uint64, size int) []byte {
		b := make([]byte, 8)
		binary.BigEndian.PutUint64(b, n)
		return b[8-size:]
	}
	h := func(pairs ...any) (out []kgo.RecordHeader) {
		for i := 0; i < len(pairs); i += 2 {
			switch v := pairs[i+1].(type) {
			case string:
				out = append(out, kgo.RecordHeader{Key: pairs[i].(string), Value: []byte(v)})
			case []byte:
				out = append(out, kgo.RecordHeader{Key: pairs[i].(string), Value: v})
			}
		}
		return out
	}
	records := []*kgo.Record{
		{Topic: letters, Key: []byte("a"), Value: []byte("{}"), Headers: h("__connect.errors.topic", source, "__connect.errors.partition", "2", "__connect.errors.offset", "17",
			"__connect.errors.exception.class.name", "org.E", "__connect.errors.exception.message", "m")},
		{Topic: letters, Key: []byte("b"), Value: []byte("{}"), Headers: h("__streams.errors.topic", source, "__streams.errors.partition", "1", "__streams.errors.offset", "18",
			"__streams.errors.exception", "org.S", "__streams.errors.message", "m")},
		{Topic: letters, Key: []byte("c"), Value: []byte("{}"), Headers: h("kafka_dlt-original-topic", source, "kafka_dlt-original-partition", number(2, 4), "kafka_dlt-original-offset", number(19, 8),
			"kafka_dlt-exception-fqcn", "org.K", "kafka_dlt-exception-message", "m")},
		{Topic: letters, Value: []byte("{}")},
		{Topic: letters, Key: []byte("e"), Headers: h("x-source-topic", "some.other.topic", "x-dlq-error-code", "X")},
	}
	require.NoError(t, e.client.ProduceSync(t.Context(), records...).FirstErr())
	got, err := e.Get(t.Context(), e.consumer, "0@0", "0@1", "0@2", "0@3", "0@4")
	require.NoError(t, err)
	for i, want := range []struct {
		convention, code string
		partition        int32
		offset           int64
	}{{dlq.ConventionConnect, "org.E", 2, 17}, {dlq.ConventionStreams, "org.S", 1, 18}, {dlq.ConventionSpring, "org.K", 2, 19}} {
		require.Equal(t, want.convention, got[i].Convention)
		require.Equal(t, want.code, got[i].Code)
		require.Equal(t, source, got[i].Source.Topic)
		require.Equal(t, want.partition, *got[i].Source.Partition)
		require.Equal(t, want.offset, *got[i].Source.Offset)
	}
	require.Equal(t, dlq.ConventionNone, got[3].Convention)
	report, err := e.Replay(t.Context(), dlq.Request{Consumer: e.consumer, All: true})
	require.NoError(t, err)
	require.Equal(t, 4, report.Replayed)
	require.Equal(t, 1, report.Refused, "a letter of another topic is not put on this one")
	back := e.returned()
	at := slices.IndexFunc(back, func(r *kgo.Record) bool { return string(r.Key) == "a" })
	require.EqualValues(t, 2, back[at].Partition)
	require.Equal(t, h(dlq.HeaderReturns, "1"), back[at].Headers)
	null := slices.IndexFunc(back, func(r *kgo.Record) bool { return value(r, dlq.HeaderReturns) == "1" && r.Key == nil })
	require.GreaterOrEqual(t, null, 0)
}

func TestNoPersonalValueIsShown(t *testing.T) {
	e := newEnv(t)
	const person = "0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01"
	values := []string{
		`{"Payload":{"PropertyObjectViewId":"v","UserId":"` + person + `","SessionId":null,"anonymousId":["` + person + `"],"Deep":{"user_id":{"x":"` + person + `"}}}}`,
		`{"UserId": "` + person + `", broken`,
		`{"UserId":"{` + strings.ToUpper(person) + `}","x":1}`,
		"\xff{\"SessionId\":\"" + person,
	}
	for _, v := range values {
		r := deadletter.Encode(letters, deadletter.Letter{Record: &record.Record{ID: record.ID{Topic: source}, Key: []byte(person), Value: []byte(v), Headers: []record.Header{{Key: "UserId", Value: []byte(person)}}},
			Reason: "it says " + person}, time.Now())
		require.NoError(t, e.client.ProduceSync(t.Context(), r).FirstErr())
	}
	got, err := e.Get(t.Context(), e.consumer, "0@0", "0@1", "0@2", "0@3")
	require.NoError(t, err)
	page, err := e.List(t.Context(), e.consumer, dlq.Filter{}, 10, "")
	require.NoError(t, err)
	for _, shown := range []any{got, page} {
		text, err := json.Marshal(shown)
		require.NoError(t, err)
		require.NotContains(t, strings.ToLower(string(text)), person[:20])
	}
	require.Contains(t, got[0].Payload, `"PropertyObjectViewId": "v"`)
	require.Contains(t, got[0].Payload, `"UserId": "***"`)
	require.Contains(t, got[0].Payload, `"SessionId": null`)
}

func TestHTTP(t *testing.T) {
	e := newEnv(t)
	e.dead(5)
	api, admin := http.NewServeMux(), http.NewServeMux()
	e.Register(api, admin)
	call := func(mux *http.ServeMux, method, target, body string) (int, map[string]any) {
		r := httptest.NewRequestWithContext(t.Context(), method, target, io.Reader(strings.NewReader(body)))
		ctx, cancel := context.WithTimeout(r.Context(), 20*time.Second)
		defer cancel()
		w := httptest.NewRecorder()
		httpserver.Routes(mux).ServeHTTP(w, r.WithContext(ctx))
		var out map[string]any
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &out), w.Body.String())
		return w.Code, out
	}
	for target, want := range map[string]int{
		"?consumer=popularity":                  200,
		"?consumer=popularity&limit=2&code=X":   200,
		"":                                      400,
		"?consumer=views":                       400,
		"?consumer=popularity&since=yesterday":  400,
		"?consumer=popularity&limit=0":          400,
		"?consumer=popularity&state=x":          400,
		"?consumer=popularity&cursor=x":         400,
		"?consumer=promotion":                   200, // a topic that does not exist has no letters
		"?consumer=popularity&until=2020-01-01": 400,
	} {
		status, _ := call(api, http.MethodGet, "/api/v1/dead-letters"+target, "")
		require.Equal(t, want, status, target)
	}
	_, page := call(api, http.MethodGet, "/api/v1/dead-letters?consumer=popularity&limit=2", "")
	require.Len(t, page["items"], 2)
	require.NotEmpty(t, page["nextCursor"])
	for body, want := range map[string]int{
		``:                                      422,
		`{}`:                                    422,
		`{"consumer":"popularity"}`:             422,
		`{"consumer":"popularity","filter":{}}`: 422,
		`{"consumer":"views","all":true}`:       400,
		`{"all":true}`:                          400,
		`{"consumer":"popularity","all":true,"ids":["0@0"]}`:          400,
		`{"consumer":"popularity","ids":["x"]}`:                       400,
		`{"consumer":"popularity","ids":["0@77"]}`:                    404,
		`{"consumer":"popularity","all":true,"dryRun":true}`:          200,
		`{"consumer":"popularity","filter":{"since":"yesterday"}}`:    400,
		`{"consumer":"popularity","filter":{"key":"key-1"},"rate":5}`: 200,
	} {
		status, out := call(admin, http.MethodPost, "/admin/dead-letters/replay", body)
		require.Equal(t, want, status, "%s: %v", body, out)
	}
	require.Len(t, e.returned(), 1)
	e.Pool.Close()
	status, page := call(api, http.MethodGet, "/api/v1/dead-letters?consumer=popularity", "")
	require.Equal(t, 200, status, "letters are in Kafka")
	require.Len(t, page["items"], 5)
	require.NotEmpty(t, page["problems"])
	status, _ = call(admin, http.MethodPost, "/admin/dead-letters/replay", `{"consumer":"popularity","all":true}`)
	require.Equal(t, 503, status)
}

func TestTwoReplaysAtOnce(t *testing.T) {
	e := newEnv(t)
	e.dead(30)
	entered, leave := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		once := false
		_, err := e.Replay(t.Context(), dlq.Request{Consumer: e.consumer, All: true, Rate: 10, Progress: func(dlq.Report) {
			if !once {
				once = true
				close(entered)
				<-leave
			}
		}})
		done <- err
	}()
	<-entered
	_, err := e.Replay(t.Context(), dlq.Request{Consumer: e.consumer, All: true})
	var busy *dlq.BusyError
	require.ErrorAs(t, err, &busy)
	close(leave)
	require.NoError(t, <-done)
	require.Len(t, e.returned(), 30)
}

// TestLargeLetters: those that the source topic takes one by one, though not together, and one that it does not take at all.
func TestLargeLetters(t *testing.T) {
	e := newEnv(t)
	for topic, limit := range map[string]string{source: "300000", letters: "8388608"} {
		_, err := e.Admin.Kadm().AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &limit}}, topic)
		require.NoError(t, err)
	}
	big, err := kgo.NewClient(append(e.Kafka.KgoOpts(), deadletter.ClientOptions()...)...)
	require.NoError(t, err)
	t.Cleanup(big.Close)
	for i, size := range []int{200_000, 200_000, 200_000, 1_500_000, 200_000} {
		noise := make([]byte, size)
		for j := range noise {
			noise[j] = byte(rand.Uint32())
		}
		r := deadletter.Encode(letters, deadletter.Letter{Record: &record.Record{ID: record.ID{Topic: source}, Key: fmt.Appendf(nil, "key-%d", i), Value: noise}, Code: "X", Reason: "r"}, time.Now())
		require.NoError(t, big.ProduceSync(t.Context(), r).FirstErr())
	}
	report, err := e.Replay(t.Context(), dlq.Request{Consumer: e.consumer, All: true})
	require.NoError(t, err)
	require.Equal(t, 4, report.Replayed, report)
	require.Equal(t, 1, report.Refused, report)
	require.Len(t, e.returned(), 4)
	require.Len(t, idsOf(t, e, dlq.StateWaiting, 10), 1)
}

// TestTopicMadeAnew: what was done with letters of a topic says nothing about those of one of the same name.
// A list of a topic that somebody had deleted was empty, as if nothing had died.
func TestTheListOfAMissingTopicSaysThatItIsMissing(t *testing.T) {
	e := newEnv(t)
	page, err := e.List(t.Context(), e.consumer, dlq.Filter{}, 3, "")
	require.NoError(t, err)
	require.False(t, page.Missing)
	_, err = e.Admin.Kadm().DeleteTopics(t.Context(), letters)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		page, err = e.List(t.Context(), e.consumer, dlq.Filter{}, 3, "")
		return err == nil && page.Missing
	}, 10*time.Second, 50*time.Millisecond)

	api := http.NewServeMux()
	e.Register(api, http.NewServeMux())
	w := httptest.NewRecorder()
	httpserver.Routes(api).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/dead-letters?consumer=popularity", nil))
	require.Equal(t, http.StatusOK, w.Code)
	require.Contains(t, w.Body.String(), "the dead-letter topic "+letters+" does not exist")
	require.Contains(t, w.Body.String(), "vitrina topics apply")
}

func TestTopicMadeAnew(t *testing.T) {
	e := newEnv(t)
	e.dead(12)
	report, err := e.Replay(t.Context(), dlq.Request{Consumer: e.consumer, All: true})
	require.NoError(t, err)
	require.Equal(t, 12, report.Replayed)
	page, err := e.List(t.Context(), e.consumer, dlq.Filter{}, 3, "")
	require.NoError(t, err)
	_, err = e.Admin.Kadm().DeleteTopics(t.Context(), letters)
	require.NoError(t, err)
	_, err = e.Admin.Kadm().CreateTopics(t.Context(), partitions, 1, nil, letters)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := e.List(t.Context(), e.consumer, dlq.Filter{}, 3, page.Next)
		return errors.Is(err, dlq.ErrCursor)
	}, 10*time.Second, 50*time.Millisecond)
	e.connect()
	e.dead(12)
	require.Len(t, idsOf(t, e, dlq.StateWaiting, 100), 12)
	require.EqualValues(t, 12, e.depth())

	// Retention: acts on what is gone are forgotten, drops stay.
	_, err = e.Drop(t.Context(), dlq.Request{Consumer: e.consumer, IDs: []string{"0@0"}, Reason: "x"})
	require.NoError(t, err)
	_, err = e.Replay(t.Context(), dlq.Request{Consumer: e.consumer, IDs: []string{"0@1"}})
	require.NoError(t, err)
	require.NoError(t, e.Admin.DeleteBefore(t.Context(), letters, map[int32]int64{0: 2}))
	report, err = e.Replay(t.Context(), dlq.Request{Consumer: e.consumer, All: true})
	require.NoError(t, err)
	require.Equal(t, 10, report.Replayed)
	var actions []string
	rows, err := e.Pool.Query(t.Context(), `SELECT action FROM vitrina.dead_letter_actions WHERE topic_id = (SELECT topic_id FROM vitrina.dead_letter_actions ORDER BY at DESC LIMIT 1) AND "partition" = 0 AND "offset" < 2`)
	require.NoError(t, err)
	var action string
	_, err = pgx.ForEachRow(rows, []any{&action}, func() error { actions = append(actions, action); return nil })
	require.NoError(t, err)
	require.Equal(t, []string{"dropped"}, actions)
}
