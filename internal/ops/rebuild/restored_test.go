package rebuild_test

import (
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/internal/ops/rebuild"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// copyDatabase returns a function that replaces the database by what it is now. Nobody may be connected to it.
func (e *env) copyDatabase() (restore func()) {
	e.t.Helper()
	address, err := url.Parse(e.dsn)
	require.NoError(e.t, err)
	from, to := strings.TrimPrefix(address.Path, "/"), "backup_"+strings.ReplaceAll(uuid.NewString(), "-", "")
	maintenance := *address
	maintenance.Path = "/postgres"
	e.pool.Close()
	conn, err := pgx.Connect(e.t.Context(), maintenance.String())
	require.NoError(e.t, err)
	e.eventually(time.Minute, func() (bool, string) { // the server notices a closed connection a moment later
		_, err = conn.Exec(e.t.Context(), `CREATE DATABASE `+to+` TEMPLATE `+from)
		return err == nil, "copy the database"
	})
	require.NoError(e.t, conn.Close(e.t.Context()))
	address.Path = "/" + to
	connect := func() {
		e.pool, err = postgres.NewPool(e.t.Context(), e.dsn, postgres.PoolOptions{MaxConns: 8})
		require.NoError(e.t, err)
		e.t.Cleanup(e.pool.Close)
	}
	connect()
	return func() {
		e.pool.Close()
		e.dsn = address.String()
		connect()
	}
}

// restoreCards inserts the cards of a stream, without its events.
func (e *env) restoreCards(o generate.Options) {
	e.t.Helper()
	var cards []generate.Card
	for item := range generate.Items(o) {
		if item.Card != nil {
			cards = append(cards, *item.Card)
		}
	}
	require.NoError(e.t, generate.PostgresCards{DB: e.pool}.WriteCards(e.t.Context(), cards))
}

// The runbook, with its very statements: the database is set back by half of the events, and a rebuild was caught in the middle.
func TestPostgresRestoredFromABackup(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	o := options(40)
	o.LateCards, o.Homeless, o.Views, o.Purchases = 0, 0, 800, 300
	caughtUp := func() {
		e.equal(time.Minute, e.expected(false, false), views)
		e.equal(time.Minute, e.expected(false, false), boosts)
		for group, topic := range map[string]string{viewGroup: viewEnded, boostGroup: purchases} {
			e.caughtUp(group, topic)
			e.caughtUp(group, group+"-loop")
		}
	}
	i := e.start("one", "promotion", "popularity")
	require.NoError(t, e.send(o, 0))
	caughtUp()
	i.stop()
	op := e.submit(rebuild.KindRebuild, promotionBoost, rebuild.FromTopic, rebuild.Params{})
	e.spoil(`UPDATE vitrina.operations SET state = 'running', step = 'offsets', data = '{"sourceId": "`+e.topicID(purchases).String()+`", "epoch": 2}'`,
		`UPDATE vitrina.projections SET state = 'closed', epoch = 2 WHERE name = 'promotion-boost'`)
	restore := e.copyDatabase()
	e.spoil(`UPDATE vitrina.projections SET state = 'open', epoch = 1 WHERE name = 'promotion-boost'`,
		`UPDATE vitrina.operations SET state = 'failed'`)
	i = e.start("one", "promotion", "popularity")
	more := o
	more.Seed = 41
	require.NoError(t, e.send(more, 0))
	caughtUp()
	i.stop()
	restore()
	e.restoreCards(more) // by the catalog

	text, err := os.ReadFile("../../../docs/runbooks/postgres-restored.md")
	require.NoError(t, err)
	statements := regexp.MustCompile(`-c "([^"]+)"`).FindAllStringSubmatch(string(text), -1)
	require.Len(t, statements, 2)
	for _, s := range statements {
		e.spoil(s[1])
	}
	restored, err := postgres.ReadOperation(t.Context(), e.pool, op.ID)
	require.NoError(t, err)
	require.Equal(t, postgres.OperationFailed, restored.State)
	e.start("one", "promotion", "popularity")
	e.rebuilds(popularity, rebuild.FromMarks, rebuild.Params{})
	e.rebuilds(promotionBoost, rebuild.FromTable, rebuild.Params{})
	e.equal(time.Minute, e.expected(true, true), views)
	e.equal(time.Minute, e.expected(true, true), boosts)
}
