package rebuild

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pin-marketplace/vitrina/internal/httpserver"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// Kinds of operations.
const (
	KindRebuild = "rebuild"
	KindReplay  = "replay"
)

// What an operation works from.
const (
	FromTopic  = "topic"
	FromTable  = "table" // promotion-boost: the group table's snapshots
	FromMarks  = "marks" // popularity: the group table's marks
	FromTime   = "time"
	FromOffset = "offset"
)

// Params are the further parameters of a request.
type Params struct {
	Time       time.Time `json:"time,omitzero"`       // FromTime
	Offset     int64     `json:"offset,omitempty"`    // FromOffset
	Partition  *int32    `json:"partition,omitempty"` // FromOffset; nil: all
	AcceptLoss bool      `json:"acceptLoss,omitempty"`
}

// Request asks for an operation.
type Request struct {
	Kind       string
	Projection string
	Source     string // empty: the projection's default
	Params     Params
	By         string // who asks, for the record
}

// InvalidError is a request that cannot be understood; Unknown: it names no projection that can be rebuilt.
type InvalidError struct {
	Reason  string
	Unknown bool
}

func (e *InvalidError) Error() string { return e.Reason }

// RefusedError is a request, or an operation, that must not be carried out as things are; it says what to do.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// ErrNoDatabase says that the database in which operations are recorded cannot be used.
var ErrNoDatabase = errors.New("PostgreSQL, where operations are recorded, cannot be used (is it reachable, and migrated with `vitrina migrate up`?)")

func refuse(format string, args ...any) error {
	return &RefusedError{Reason: fmt.Sprintf(format, args...)}
}

// Projections are what can be rebuilt, with their sources, the default first.
func sources(projection string) []string {
	switch projection {
	case postgres.PromotionBoost:
		return []string{FromTopic, FromTable}
	case postgres.Popularity:
		return []string{FromMarks, FromTopic}
	default:
		return nil
	}
}

// normalise checks a request and fills in the default source.
func (q *Request) normalise() error {
	if q.Kind == KindReplay {
		if q.Projection != postgres.PriceHistory || q.Source != FromTime && q.Source != FromOffset {
			return &InvalidError{Reason: "a replay is of price-history, from a time or an offset"}
		}
		if q.Source == FromTime && q.Params.Time.IsZero() || q.Params.Offset < 0 || q.Params.Partition != nil && *q.Params.Partition < 0 {
			return &InvalidError{Reason: "a replay needs a time, or an offset and a partition that are not negative"}
		}
		return nil
	}
	known := sources(q.Projection)
	switch {
	case q.Projection == postgres.PriceHistory:
		return &InvalidError{Unknown: true, Reason: "price-history has no projection to rebuild: vitrina replay price-history reads its topic again"}
	case known == nil:
		return &InvalidError{Unknown: true, Reason: fmt.Sprintf("%q is no projection: it is %s or %s", httpserver.Shown(q.Projection), postgres.PromotionBoost, postgres.Popularity)}
	case q.Source == "":
		q.Source = known[0]
	case !slices.Contains(known, q.Source):
		return &InvalidError{Reason: fmt.Sprintf("%s cannot be rebuilt from %q, only from: %s", q.Projection, httpserver.Shown(q.Source), strings.Join(known, ", "))}
	}
	return nil
}

// Submit records a request, or joins the same operation that is already active; made says which. A rebuild of promotion-boost
// with its flag off is refused (section 12, rule 10): nothing would apply the boosts again. So is a request that differs from
// the active operation of its projection.
func Submit(ctx context.Context, pool *pgxpool.Pool, q Request, promotionsEnabled bool) (op postgres.Operation, made bool, err error) {
	if err := q.normalise(); err != nil {
		return op, false, err
	}
	if q.Projection == postgres.PromotionBoost && !promotionsEnabled {
		return op, false, errFlagOff()
	}
	params, err := json.Marshal(q.Params)
	if err != nil {
		return op, false, fmt.Errorf("encoding the request: %w", err)
	}
	id, err := uuid.NewV7()
	if err != nil {
		return op, false, fmt.Errorf("making an id: %w", err)
	}
	op, made, err = postgres.RequestOperation(ctx, pool, postgres.Operation{
		ID: id, Kind: q.Kind, Projection: q.Projection, Source: q.Source, Request: params, RequestedBy: q.By,
	})
	if err != nil {
		return op, false, fmt.Errorf("%w: %w", ErrNoDatabase, err)
	}
	if made {
		return op, true, nil
	}
	var active Params
	if err := json.Unmarshal(op.Request, &active); err != nil {
		return op, false, fmt.Errorf("reading the request of operation %s: %w", op.ID, err)
	}
	if op.Source != q.Source || !active.equal(q.Params) {
		return op, false, refuse("another %s of %s (from %s) is active, operation %s, step %s: wait for its end, or follow it", op.Kind, op.Projection, op.Source, op.ID, op.Step)
	}
	return op, false, nil
}

func (p Params) equal(o Params) bool {
	same := p.Partition == nil && o.Partition == nil || p.Partition != nil && o.Partition != nil && *p.Partition == *o.Partition
	return same && p.Time.Equal(o.Time) && p.Offset == o.Offset && p.AcceptLoss == o.AcceptLoss
}

func errFlagOff() error {
	return refuse("catalog.promotions.enabled is off: a rebuild would set every boost to 0 and nothing would apply them again; switch the flag on first")
}

// Progress is how far the present step is.
type Progress struct {
	Step    string  `json:"step"`
	Percent float64 `json:"percent"` // of the present step's countable part; 100 at the end
	Done    int64   `json:"done"`
	Total   int64   `json:"total"`
	Message string  `json:"message"`
}

// Status is an operation as the API and the command line show it (contracts, section 5).
type Status struct {
	ID          uuid.UUID  `json:"id"`
	Kind        string     `json:"kind"`
	Projection  string     `json:"projection"`
	Source      string     `json:"source"`
	State       string     `json:"state"`
	Progress    Progress   `json:"progress"`
	RequestedAt time.Time  `json:"requestedAt"`
	StartedAt   *time.Time `json:"startedAt"`
	FinishedAt  *time.Time `json:"finishedAt"`
	Error       *string    `json:"error"` // of a running operation: why it waits
	Holder      string     `json:"holder,omitempty"`
}

// StatusOf shows an operation.
func StatusOf(o postgres.Operation) Status {
	s := Status{
		ID: o.ID, Kind: o.Kind, Projection: o.Projection, Source: o.Source, State: o.State, RequestedAt: o.RequestedAt.UTC(),
		StartedAt: utc(o.StartedAt), FinishedAt: utc(o.FinishedAt),
		Progress: Progress{Step: o.Step, Done: o.Done, Total: o.Total, Message: o.Message},
	}
	if o.Total > 0 {
		s.Progress.Percent = float64(min(o.Done, o.Total)*1000/o.Total) / 10
	}
	if o.State == postgres.OperationSucceeded {
		s.Progress.Percent = 100
	}
	if o.Error != "" {
		s.Error = &o.Error
	}
	if o.Leased {
		s.Holder = o.LeaseHolder
	}
	return s
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}
