// Package verify recomputes what the databases should hold from Kafka, compares while everything runs, and lists what differs with its
// likely cause. What is on its way when it is looked at is no difference: records that are not finished are left out, and
// everything that differs is looked at again a little later and reported only if it still differs in the same way.
package verify

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/sinks/clickhouse"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// The projections that can be verified.
const (
	PromotionBoost = postgres.PromotionBoost
	Popularity     = postgres.Popularity
	PriceHistory   = postgres.PriceHistory
)

// Verifier compares. All fields are required; Facts may be nil unless price history is verified.
type Verifier struct {
	Admin             *stream.Admin
	Pool              *pgxpool.Pool
	Facts             *clickhouse.Conn
	Logger            *slog.Logger
	Clock             func() time.Time
	PromotionsEnabled bool
	Settle            time.Duration      // between the two looks
	Progress          func(phase string) // what it is doing, for a person
}

// Difference is one thing that is not as it should be.
type Difference struct {
	What     string `json:"what"` // contribution, target, card, object, project, fact
	ID       string `json:"id"`
	Expected string `json:"expected"`
	Actual   string `json:"actual"`
	Cause    string `json:"cause"`
	Note     bool   `json:"note,omitempty"` // may be right as it is: does not count

	purchase *postgres.Snapshot // to flush again
	fact     *codecs.Fact       // to write again
}

func (d Difference) key() string { return d.What + " " + d.ID }

// Report is the end of a verification.
type Report struct {
	Projection  string           `json:"projection"`
	Checked     map[string]int64 `json:"checked"`
	InFlight    int64            `json:"inFlight"`    // records not finished, left out
	Total       int              `json:"total"`       // differences left
	Differences []Difference     `json:"differences"` // the first ones, and notes
	Repaired    int              `json:"repaired"`
	Notes       []string         `json:"notes,omitempty"`
}

const maxListed = 1000

// look is what one pass has seen.
type look struct {
	checked     map[string]int64
	inFlight    int64
	differences map[string]Difference
	notes       []string
}

func newLook() *look { return &look{checked: map[string]int64{}, differences: map[string]Difference{}} }

func (l *look) differ(d Difference) { l.differences[d.key()] = d }

// RefusedError says why a projection cannot be verified now.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// Run verifies one projection, and with repair mends what needs no rebuild and looks again.
func (v *Verifier) Run(ctx context.Context, projection string, repair bool) (*Report, error) {
	passes := map[string]func(context.Context) (*look, error){PromotionBoost: v.promotion, Popularity: v.popularity, PriceHistory: v.price}
	pass, ok := passes[projection]
	if !ok {
		return nil, &RefusedError{fmt.Sprintf("there is no projection %q: it is %s, %s or %s", projection, PromotionBoost, Popularity, PriceHistory)}
	}
	if projection != PriceHistory {
		p, err := postgres.ReadProjection(ctx, v.Pool, projection)
		if err != nil {
			return nil, err
		}
		if !p.Open {
			return nil, &RefusedError{"projection " + projection + " is being rebuilt: verify it when the rebuild has ended"}
		}
	}
	report := &Report{Projection: projection, Differences: []Difference{}}
	found, err := v.twice(ctx, pass, report)
	if err != nil {
		return nil, err
	}
	if repair && len(found) > 0 {
		v.Progress("mends")
		notes, err := v.repair(ctx, projection, found)
		if err != nil {
			return nil, fmt.Errorf("repair %s: %w", projection, err)
		}
		if len(notes) == 0 {
			before := count(found)
			if found, err = v.twice(ctx, pass, report); err != nil {
				return nil, err
			}
			report.Repaired = max(0, before-count(found))
		}
		report.Notes = append(report.Notes, notes...)
	}
	report.Total = count(found)
	list := slices.SortedFunc(maps.Values(found), func(a, b Difference) int { return cmp.Compare(a.key(), b.key()) })
	slices.SortStableFunc(list, func(a, b Difference) int {
		if a.Note == b.Note {
			return 0
		}
		if b.Note {
			return -1
		}
		return 1
	})
	report.Differences = list[:min(len(list), maxListed)]
	return report, nil
}

func count(found map[string]Difference) (n int) {
	for _, d := range found {
		if !d.Note {
			n++
		}
	}
	return n
}

// twice returns what differed in the same way in both looks.
func (v *Verifier) twice(ctx context.Context, pass func(context.Context) (*look, error), report *Report) (map[string]Difference, error) {
	first, err := pass(ctx)
	if err != nil {
		return nil, err
	}
	report.Checked, report.InFlight, report.Notes = first.checked, first.inFlight, first.notes
	if len(first.differences) == 0 {
		return first.differences, nil
	}
	v.Progress(fmt.Sprintf("%d differ: waits %s and looks again", len(first.differences), v.Settle))
	wait := time.NewTimer(v.Settle)
	defer wait.Stop()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-wait.C:
	}
	second, err := pass(ctx)
	if err != nil {
		return nil, err
	}
	report.Checked, report.InFlight, report.Notes = second.checked, second.inFlight, second.notes
	moving := 0
	maps.DeleteFunc(second.differences, func(key string, d Difference) bool {
		before, ok := first.differences[key]
		if ok && (before.Expected != d.Expected || before.Actual != d.Actual) {
			moving++
		}
		return !ok || before.Expected != d.Expected || before.Actual != d.Actual
	})
	if moving > 0 {
		report.Notes = append(report.Notes, fmt.Sprintf("%d more differed in both looks but changed between them: they are being written; verify again at a quieter time", moving))
	}
	return second.differences, nil
}

// repair mends what can be mended without a rebuild; notes say why nothing was.
func (v *Verifier) repair(ctx context.Context, projection string, found map[string]Difference) (notes []string, err error) {
	switch {
	case projection == PriceHistory:
		return nil, v.repairFacts(ctx, found)
	case projection == Popularity:
		return []string{"counters are mended by a rebuild only: run `vitrina rebuild popularity`"}, nil
	case !v.PromotionsEnabled:
		return []string{"catalog.promotions.enabled is off: nothing was repaired"}, nil
	}
	return nil, v.repairBoost(ctx, found)
}

// committed says which records the group has finished: those of its source and loop topic below the committed offsets.
type committed struct {
	source, loop uint32 // incarnations
	offsets      map[bool][]stream.Positions
}

func (v *Verifier) committed(ctx context.Context, c config.Consumer) (committed, error) {
	names := []string{c.Topic}
	if c.Role != config.RolePrice {
		names = append(names, c.LoopTopic())
	}
	topics, err := v.Admin.Topics(ctx, names...)
	if err != nil {
		return committed{}, err
	}
	for _, name := range names {
		if _, ok := topics[name]; !ok {
			return committed{}, &RefusedError{"topic " + name + " does not exist: nothing can be compared"}
		}
	}
	positions, err := v.Admin.GroupPositions(ctx, c.Group, names...)
	if err != nil {
		return committed{}, err
	}
	return committed{
		source: stream.Incarnation(topics[c.Topic].ID), loop: stream.Incarnation(topics[c.LoopTopic()].ID),
		offsets: map[bool][]stream.Positions{false: positions[c.Topic], true: positions[c.LoopTopic()]},
	}, nil
}

// finished tells whether the record of a state is; one of an earlier incarnation of its topic is.
func (c committed) finished(o codecs.Origin) bool {
	incarnation := c.source
	if o.Loop {
		incarnation = c.loop
	}
	if o.Incarnation != incarnation {
		return true
	}
	list := c.offsets[o.Loop]
	return int(o.Partition) < len(list) && o.Offset < list[o.Partition].Committed
}

// readTopic gives every record of a topic to fn, one partition after the other; done, which may be nil, is called at each one's end.
func (v *Verifier) readTopic(ctx context.Context, topic string, fn func(*kgo.Record) error, done func()) error {
	ranges, err := v.Admin.Ranges(ctx, topic)
	if err != nil {
		return err
	}
	for _, p := range slices.Sorted(maps.Keys(ranges)) {
		v.Progress(fmt.Sprintf("reads %s, partition %d of %d", topic, p+1, len(ranges)))
		err := v.Admin.ReadRanges(ctx, topic, map[int32]stream.Range{p: ranges[p]}, func(rec *kgo.Record) (bool, error) { return true, fn(rec) })
		if err != nil {
			return err
		}
		if done != nil {
			done()
		}
	}
	return nil
}

// tableKey is the id that a record of a group table is about.
func tableKey(rec *kgo.Record) (uuid.UUID, error) {
	id, err := uuid.Parse(string(rec.Key))
	if err != nil {
		return id, fmt.Errorf("%s/%d@%d is no record of this program's: %w", rec.Topic, rec.Partition, rec.Offset, err)
	}
	return id, nil
}

// inSnapshot reads the database as it is at one moment.
func (v *Verifier) inSnapshot(ctx context.Context, do func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, v.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		for _, statement := range []string{`SET LOCAL statement_timeout = 0`, `SET LOCAL idle_in_transaction_session_timeout = 0`, `SET LOCAL plan_cache_mode = auto`} {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return fmt.Errorf("begin a snapshot: %w", err)
			}
		}
		return do(tx)
	})
}
