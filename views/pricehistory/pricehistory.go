// Package pricehistory reads the price history of property objects from the facts in ClickHouse (specification 004; contracts,
// sections 4 and 5): day, month and year series of price and price per metre, and the growth over them. Its query is documented
// for other services in docs/price-history-sql.md, which a test holds equal to this one.
package pricehistory

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/google/uuid"
	"github.com/shopspring/decimal"

	"github.com/pin-marketplace/vitrina/sinks/clickhouse"
)

// Step is the length of a period. Periods are those of UTC.
type Step string

// The steps, with the form of their period.
const (
	Day   Step = "day"   // 2026-11-30
	Month Step = "month" // 2026-11
	Year  Step = "year"  // 2026
)

// ParseStep reads a step; the names compare exactly.
func ParseStep(s string) (Step, error) {
	switch step := Step(s); step {
	case Day, Month, Year:
		return step, nil
	}
	return "", fmt.Errorf("step is %q; it must be day, month or year", s)
}

// length of the period's name as a prefix of the date 2026-11-30.
func (s Step) length() string {
	switch s {
	case Month:
		return "7"
	case Year:
		return "4"
	default:
		return "10"
	}
}

// Query asks for one series. Facts count from From to To, both included; a zero bound is none.
type Query struct {
	PropertyObjectID uuid.UUID
	Step             Step
	From, To         time.Time
}

// Series is the price history of an object, periods without a fact left out.
type Series struct {
	PropertyObjectID uuid.UUID `json:"propertyObjectId"`
	Step             Step      `json:"step"`
	Series           []Point   `json:"series"`
	GrowthPercent    *Percent  `json:"growthPercent"` // null with fewer than two periods, or when the first price per metre is 0
}

// Point is one period. Its value is that of its last fact by EventTime; of facts of one second the one with the greatest FactId
// counts, so that a replay changes nothing.
type Point struct {
	Period        string `json:"period"`
	Price         string `json:"price"`         // two decimals
	PricePerMeter string `json:"pricePerMeter"` // two decimals
	Facts         uint64 `json:"facts"`         // distinct facts of the period
}

// Percent is a JSON number in exact decimal form.
type Percent struct{ decimal.Decimal }

// MarshalJSON writes the number without quotes and without an exponent.
func (p Percent) MarshalJSON() ([]byte, error) { return []byte(p.String()), nil }

// percentPlaces is how far a growth that is no finite decimal is carried.
const percentPlaces = 10

// Growth is (last - first) / first x 100, rounded half away from zero at the tenth decimal; nil when first is 0.
func Growth(first, last decimal.Decimal) *Percent {
	if first.IsZero() {
		return nil
	}
	return &Percent{last.Sub(first).Mul(decimal.New(100, 0)).DivRound(first, percentPlaces)}
}

var (
	// ErrNotFound says that there is no fact of the object at all.
	ErrNotFound = errors.New("there is no price fact of this property object")
	// ErrTooLong says that the series has more than MaxPoints periods.
	ErrTooLong = fmt.Errorf("the series has more than %d periods; take a longer step or narrow from and to", MaxPoints)
)

// MaxPoints is how many periods a series may have: more than 27 years of days.
const MaxPoints = 10000

// Source is a connection to the facts. *clickhouse.Conn is one.
type Source interface {
	Query(ctx context.Context, query string, args ...any) (driver.Rows, error)
	Table() string
	QueryTimeout() time.Duration
}

// Reader answers queries. It is safe for concurrent use.
type Reader struct {
	source Source
	query  string
}

//go:embed series.sql
var seriesSQL string

// tableName is the table in series.sql, as other services know it.
const tableName = "pin_analytics.property_object_price_history_facts"

// New returns a reader of the source's facts.
func New(source Source) *Reader {
	return &Reader{source: source, query: strings.ReplaceAll(seriesSQL, tableName, source.Table())}
}

// limits bound what one query may cost the server, beside the time that its context gives it.
func limits() ch.Settings {
	return ch.Settings{"max_rows_to_read": 100_000_000, "max_memory_usage": 1 << 30}
}

// Series reads one series. Errors: ErrNotFound, ErrTooLong, the context's, or a *clickhouse.Outage.
func (r *Reader) Series(ctx context.Context, q Query) (*Series, error) {
	if _, err := ParseStep(string(q.Step)); err != nil {
		return nil, err
	}
	own, cancel := context.WithTimeout(ctx, r.source.QueryTimeout())
	defer cancel()
	s := &Series{PropertyObjectID: q.PropertyObjectID, Step: q.Step, Series: []Point{}}
	found, err := r.read(own, q, s)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, clickhouse.Explain(err, "answer within "+r.source.QueryTimeout().String())
	}
	if !found {
		return nil, ErrNotFound
	}
	if len(s.Series) > MaxPoints {
		return nil, ErrTooLong
	}
	return s, nil
}

// read fills the series and tells whether the object has any fact, inside the bounds or not.
func (r *Reader) read(ctx context.Context, q Query, s *Series) (found bool, err error) {
	from, to := bounds(q)
	if from > to {
		return r.exists(ctx, q.PropertyObjectID)
	}
	rows, err := r.source.Query(ch.Context(ctx, ch.WithSettings(limits()), ch.WithParameters(ch.Parameters{
		"object": q.PropertyObjectID.String(), "from": seconds(from), "to": seconds(to), "length": q.Step.length(), "limit": strconv.Itoa(MaxPoints + 1),
	})), r.query)
	if err != nil {
		return false, err
	}
	var first, last decimal.Decimal
	for rows.Next() {
		var p Point
		var price, perMeter decimal.Decimal
		if err := rows.Scan(&p.Period, &price, &perMeter, &p.Facts); err != nil {
			return false, errors.Join(err, rows.Close())
		}
		if len(s.Series) == 0 {
			first = perMeter
		}
		last = perMeter
		p.Price, p.PricePerMeter = price.StringFixed(2), perMeter.StringFixed(2)
		s.Series = append(s.Series, p)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return false, err
	}
	if len(s.Series) == 0 {
		return r.exists(ctx, q.PropertyObjectID)
	}
	if len(s.Series) > 1 {
		s.GrowthPercent = Growth(first, last)
	}
	return true, nil
}

// exists tells whether an object has any fact at all.
func (r *Reader) exists(ctx context.Context, object uuid.UUID) (bool, error) {
	rows, err := r.source.Query(ch.Context(ctx, ch.WithSettings(limits()), ch.WithParameters(ch.Parameters{"object": object.String()})),
		"SELECT 1 FROM "+r.source.Table()+" WHERE PropertyObjectId = {object:UUID} LIMIT 1")
	if err != nil {
		return false, err
	}
	found := rows.Next()
	return found, errors.Join(rows.Err(), rows.Close())
}

// bounds are the first and last whole second of the query: EventTime has whole seconds.
func bounds(q Query) (from, to int64) {
	from, to = 0, math.MaxUint32
	if !q.From.IsZero() {
		from = q.From.Unix()
		if q.From.Nanosecond() > 0 {
			from++
		}
	}
	if !q.To.IsZero() {
		to = q.To.Unix()
	}
	return max(from, 0), min(to, math.MaxUint32)
}

// seconds is the form of a DateTime('UTC') parameter.
func seconds(unix int64) string { return time.Unix(unix, 0).UTC().Format(time.DateTime) }
