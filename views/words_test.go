package views

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/sinks/clickhouse"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

type fakeHost struct{ off bool }

func (fakeHost) Role(string) (RoleState, bool) { return RoleState{}, false }
func (fakeHost) Lookup(string, string) ([]byte, error) {
	return nil, &stream.NotHereError{Partition: -1}
}
func (fakeHost) Retries(string) int64      { return 0 }
func (h fakeHost) PromotionsEnabled() bool { return !h.off }

func TestTheReasonOfABoost(t *testing.T) {
	some := []postgres.Contribution{{}}
	card := func(status string, shown, sum int, own, cascaded []postgres.Contribution, queued bool) postgres.CardInfo {
		return postgres.CardInfo{Kind: codecs.KindPropertyObject, Status: status, PromotionBoost: shown,
			Explanation: postgres.Explanation{Own: own, Cascaded: cascaded, Boost: sum, Queued: queued}}
	}
	for _, tc := range []struct {
		card       postgres.CardInfo
		named, off bool
		want       string
	}{
		{card("Published", 70, 70, some, some, false), true, false, "its boost is 70, the sum of its own and its project's active contributions"},
		{card("Published", 0, 0, nil, nil, false), false, false, "nothing promotes the card now"},
		{card("Published", 0, 70, some, nil, true), true, false, "the card shows 0 while its own and cascaded contributions are 70: the recompute takes it up within promotion.reconcile_interval (15s)"},
		{card("Published", 0, 70, some, nil, false), true, false, "the card shows 0 while its own and cascaded contributions are 70: nothing has queued it, so the sweep mends it within promotion.sweep_interval (10m0s)"},
		{card("Published", 0, 70, some, nil, true), true, true, "the card shows 0 while its own and cascaded contributions are 70: catalog.promotions.enabled is off, so boosts stay as they are until it is on"},
		{card("Delisted", 5, 70, some, some, false), true, false, "the card is Delisted: its boost is frozen at 5 whatever its contributions are (own and cascaded contributions are 70)"},
		{card("Hidden", 5, 70, nil, some, false), false, false, "the card is Hidden and no purchase ever named it: its boost is left at 5 until it is Published (own and cascaded contributions are 70)"},
		{card("Hidden", 70, 70, nil, some, false), true, false, "the card is Hidden, but purchases named it: its boost is 70, the sum of its own and its project's active contributions"},
		{card("Hidden", 0, 70, nil, some, true), true, false, "the card shows 0 while its own and cascaded contributions are 70: the recompute takes it up within promotion.reconcile_interval (15s)"},
		{postgres.CardInfo{Kind: codecs.KindProject, Status: "Published", PromotionBoost: 70, Explanation: postgres.Explanation{Own: some, Boost: 70}}, true, false, "its boost is 70, the sum of its active contributions"},
	} {
		s := &Service{cfg: config.Default(), host: fakeHost{tc.off}}
		require.Equal(t, tc.want, s.reason(tc.card, tc.named))
	}
}

func TestOutagesInWords(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want string
		ours bool
	}{
		{fmt.Errorf("read: %w", context.DeadlineExceeded), "no answer within 3s (http.request_timeout)", false},
		{fmt.Errorf("read: %w", &pgconn.PgError{Code: "42P01"}), "vitrina migrate up", false},
		{&pgconn.PgError{Code: "42501"}, "grant", false},
		{&pgconn.PgError{Code: "57014"}, "statement_timeout", false},
		{&pgconn.PgError{Code: "57P01"}, "cannot answer now", false},
		{&pgconn.PgError{Code: "42601", Message: "secret"}, "refused the query (SQLSTATE 42601)", true},
		{fmt.Errorf("read: %w", &net.OpError{Op: "dial", Err: errors.New("secret")}), "out of reach", false},
		{&clickhouse.Outage{Kind: clickhouse.Unreachable, What: "ClickHouse is away", Err: errors.New("secret")}, "ClickHouse is away", false},
		{errors.New("secret"), "inside the server", true},
	} {
		detail, ours := outage(tc.err, 3*time.Second)
		require.Contains(t, detail, tc.want)
		require.NotContains(t, detail, "secret")
		require.Equal(t, tc.ours, ours)
	}
}

// TestMarksInFlight: a mark without a ledger row is a record that is still to be counted, or one handled long ago.
func TestMarksInFlight(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	s := &Service{clock: func() time.Time { return now }}
	s.popularity = config.PopularityConsumer()
	topic := stream.TopicID{0, 0, 0, 7}
	s.health.topics = map[string]stream.Topic{s.popularity.Topic: {ID: topic}}
	ledger := postgres.Ledger{Horizons: []postgres.Horizon{
		{Lane: postgres.Lane{Incarnation: 7, Partition: 1}, Offset: 100}, {Lane: postgres.Lane{Incarnation: 6, Partition: 1}, Offset: 10},
		{Lane: postgres.Lane{Incarnation: 9, Loop: true, Partition: 1}, Offset: 5},
	}}
	mark := func(incarnation uint32, loop bool, partition int32, offset int64, age time.Duration) codecs.Mark {
		return codecs.Mark{Origin: codecs.Origin{Incarnation: incarnation, Loop: loop, Partition: partition, Offset: offset}, At: now.Add(-age)}
	}
	for _, tc := range []struct {
		mark codecs.Mark
		want bool
	}{
		{mark(7, false, 1, 99, 0), false},
		{mark(7, false, 1, 100, 0), true},
		{mark(7, false, 1, 100, 1000*time.Hour), true},
		{mark(6, false, 1, 50, 0), false}, // of the topic before this one
		{mark(9, true, 1, 4, 0), false},
		{mark(9, true, 1, 5, 0), true},
		{mark(7, false, 2, 5, time.Minute), true}, // the partition's first record
		{mark(7, false, 2, 5, time.Hour), false},
	} {
		require.Equal(t, tc.want, s.inFlight(tc.mark, ledger), "%+v", tc.mark)
	}
}
