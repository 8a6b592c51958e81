package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/test/harness"
	"github.com/pin-marketplace/vitrina/test/model"
)

// collector takes traces over OTLP and keeps the requests as they came.
type collector struct {
	*httptest.Server
	mu     sync.Mutex
	bodies strings.Builder
}

func newCollector(t *testing.T) *collector {
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		c.mu.Lock()
		defer c.mu.Unlock()
		if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Encoding") != "" {
			t.Errorf("a trace that cannot be searched: %s, encoded %q, %v", r.URL.Path, r.Header.Get("Content-Encoding"), err)
		}
		c.bodies.Write(body)
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *collector) traces() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bodies.String()
}

// secrets are the passwords and the token of a system.
func secrets(t *testing.T, s *harness.System) []string {
	out := []string{harness.AdminToken}
	for _, dsn := range []string{s.Postgres.DSN(), s.ClickHouse.DSN()} {
		_, rest, found := strings.Cut(dsn, "://")
		require.True(t, found)
		user, _, _ := strings.Cut(rest, "@")
		_, password, _ := strings.Cut(user, ":")
		require.NotEmpty(t, password)
		out = append(out, password)
	}
	return out
}

// No log line, no trace, no answer of any endpoint and no output of a command holds a UserId, an AnonymousId or a SessionId, nor a
// password: views that are counted, repeated, looped, dead, malformed and refused by the database, all of them logged.
func TestNothingThatComesOutHoldsPersonalDataOrASecret(t *testing.T) {
	traces := newCollector(t)
	s := harness.Start(t, "VITRINA_LOG_LEVEL=debug", "VITRINA_LOG_EVENTS_PER_SECOND=0", "OTEL_EXPORTER_OTLP_ENDPOINT="+traces.URL, "OTEL_EXPORTER_OTLP_COMPRESSION=none", "VITRINA_POPULARITY_RETRY_DELAYS=500ms,1s")
	hidden := secrets(t, s)
	check := func(what, text string) {
		t.Helper()
		s.NothingPersonal(what, text)
		for _, secret := range hidden {
			require.NotContains(t, strings.ToLower(text), strings.ToLower(secret), what)
		}
	}
	i := s.Instance("one", nil)
	i.WaitReady()
	o := generate.Defaults()
	o.Seed, o.Start, o.Span = 31, time.Now().UTC().Add(-time.Hour).Truncate(time.Second), time.Hour
	o.Views, o.Purchases, o.Prices, o.Projects, o.Objects, o.Malformed = 500, 50, 50, 5, 50, 1
	o.Duplicates, o.WrongKeys, o.Homeless = 0.1, 0.1, 0.02
	m := model.New(time.Now())
	require.NoError(t, s.Send(t.Context(), o, m, 0, "crc32"))
	want := m.Expected()
	s.WaitEqual(2*time.Minute, want)
	refused := refusedView(t, s)

	call := callEveryEndpoint(t, i, check)
	for _, id := range []uuid.UUID{viewIn(t, s, "counted"), refused} {
		call("GET /api/v1/property-object-views/{id}", "/api/v1/property-object-views/"+id.String(), "", id.String())
		s.Run("get", "view", id.String(), "--api", i.URL(""))
	}
	for id := range want.Purchases {
		call("GET /api/v1/purchases/{id}", "/api/v1/purchases/"+id, "", id)
		break
	}
	for target, boost := range want.Targets {
		if _, carded := want.Cards[target]; !carded || boost == 0 {
			continue // nobody knows a target that was dropped, or has no card
		}
		call("GET /api/v1/targets/{kind}/{id}", "/api/v1/targets/"+target.Kind+"/"+target.ID, "", target.ID)
		call("GET /api/v1/cards/{kind}/{id}", "/api/v1/cards/"+target.Kind+"/"+target.ID, "", target.ID)
		break
	}
	for _, fact := range want.Facts {
		call("GET /api/v1/property-objects/{id}/price-history", "/api/v1/property-objects/"+fact.PropertyObjectID+"/price-history?step=day", "", fact.PropertyObjectID)
		break
	}
	call("GET /api/v1/pipelines", "/api/v1/pipelines", "", "popularity")
	call("GET /api/v1/openapi.json", "/api/v1/openapi.json", "", "openapi")
	for _, consumer := range []string{"popularity", "promotion", "price"} {
		page := call("GET /api/v1/dead-letters", "/api/v1/dead-letters?limit=1000&consumer="+consumer, "", "CONTRACT_INVALID_FIELD")
		showLetters(t, s, consumer, page)
	}
	call("POST /admin/dead-letters/replay", "/admin/dead-letters/replay", `{"consumer":"popularity","all":true,"dryRun":true}`, "replayed")
	answer := call("POST /admin/projections/rebuild", "/admin/projections/rebuild", `{"projection":"popularity"}`, "popularity")
	var operation struct{ ID uuid.UUID }
	require.NoError(t, json.Unmarshal(answer, &operation))
	ended(t, s, operation.ID)
	i.WaitReady() // its role was held meanwhile
	call("GET /admin/operations", "/admin/operations", "", operation.ID.String())
	call("GET /admin/operations/{id}", "/admin/operations/"+operation.ID.String(), "", "succeeded")
	for path, shows := range map[string]string{"/": "<html", "/metrics": "catalog_popularity_incremented_total", "/readyz": "popularity", "/healthz": ""} {
		call("GET "+path, path, "", shows)
	}
	call("", "", "") // that was every one

	_, err := i.Stop() // which exports the last spans
	require.NoError(t, err)
	log := strings.Join(i.Log(), "\n")
	for _, event := range []string{"consumed", "rekeyed", "skipped-duplicate", "property-object-not-found", "dead-lettered", "view-rejected"} {
		require.Contains(t, log, `"event":"`+event+`"`)
	}
	check("the log", log)
	for _, part := range []string{"process " + harness.Views, "count views", "UPDATE catalog.property_object_cards", "exception", "nobody_waits"} {
		require.Contains(t, traces.traces(), part)
	}
	check("a trace", traces.traces())
}

// refusedView sends a view that the database refuses for good, so that its error goes everywhere where errors go.
func refusedView(t *testing.T, s *harness.System) uuid.UUID {
	t.Helper()
	_, err := s.Pool.Exec(t.Context(), `ALTER TABLE vitrina.late_views ADD CONSTRAINT nobody_waits CHECK (next_try IS NULL) NOT VALID`)
	require.NoError(t, err)
	producer, err := kgo.NewClient(s.KgoOpts()...)
	require.NoError(t, err)
	defer producer.Close()
	id, now := uuid.New(), time.Now().UTC().Format(time.RFC3339)
	require.NoError(t, producer.ProduceSync(t.Context(), &kgo.Record{Topic: harness.Views, Key: []byte(id.String()), Value: fmt.Appendf(nil,
		`{"ContractVersion":1,"Payload":{"SessionId":%q,"AnonymousId":%q,"UserId":%q,"PropertyObjectViewId":%q,"PropertyObjectId":%q,"ViewSource":"Catalog","ViewedAt":%q,"LastActivityAt":%q,"DurationSeconds":1}}`,
		generate.NewPersonalID(), generate.NewPersonalID(), generate.NewPersonalID(), id, uuid.New(), now, now)}).FirstErr())
	s.Eventually(time.Minute, func() (bool, string) {
		var code string
		err := s.Pool.QueryRow(t.Context(), `SELECT coalesce(code, '') FROM vitrina.late_views WHERE view_id = $1 AND letter_due IS NULL`, id).Scan(&code)
		return code == "DATABASE_REJECTED", fmt.Sprintf("the refused view is dead with code %q (%v)", code, err)
	})
	return id
}

// viewIn is some view in that state.
func viewIn(t *testing.T, s *harness.System, state string) (id uuid.UUID) {
	t.Helper()
	require.NoError(t, s.Pool.QueryRow(t.Context(), `SELECT view_id::text FROM vitrina.views WHERE state = $1::vitrina.view_state LIMIT 1`, state).Scan(&id))
	return id
}

// showLetters prints letters with the command line, which searches them.
func showLetters(t *testing.T, s *harness.System, consumer string, page []byte) {
	t.Helper()
	var letters struct {
		Items []struct{ ID string }
	}
	require.NoError(t, json.Unmarshal(page, &letters))
	args := []string{"dlq", "show", "--consumer", consumer}
	for _, l := range letters.Items {
		args = append(args, l.ID)
	}
	require.Contains(t, s.Run(args...), "payload, ")
	require.Contains(t, s.Run(append(args, "--output", "json")...), "payload")
	require.Contains(t, s.Run("dlq", "list", "--consumer", consumer), "CONTRACT_INVALID_FIELD")
}

// callEveryEndpoint returns a function that calls an operation of the document, which must answer with what it shows, and hands the
// answer to check. Called with no operation it says which of the document were left out: a new one needs an example here.
func callEveryEndpoint(t *testing.T, i *harness.Instance, check func(what, text string)) func(operation, path, body string, shows ...string) []byte {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile(filepath.Join("..", "..", "docs", "openapi.yaml"))
	require.NoError(t, err)
	left := map[string]bool{}
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			left[method+" "+path] = true
		}
	}
	require.NotEmpty(t, left)
	return func(operation, path, body string, shows ...string) []byte {
		t.Helper()
		if operation == "" {
			require.Empty(t, left, "operations of docs/openapi.yaml whose answers nobody searches")
			return nil
		}
		delete(left, operation)
		method, _, _ := strings.Cut(operation, " ")
		var content []byte
		if body != "" {
			content = []byte(body)
		}
		status, answer := i.Request(method, path, content, harness.AdminToken)
		require.Contains(t, []int{http.StatusOK, http.StatusAccepted}, status, "%s: %.600s", path, answer)
		for _, text := range shows {
			require.Contains(t, string(answer), text, path)
		}
		check(operation, string(answer))
		return answer
	}
}
