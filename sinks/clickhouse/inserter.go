package clickhouse

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/google/uuid"
	"github.com/shopspring/decimal"

	"github.com/pin-marketplace/vitrina/codecs"
)

// monthsPerInsert is the server's default of max_partitions_per_insert_block: an insert that spans more fails for ever.
const monthsPerInsert = 100

// Inserter writes facts. One goroutine uses it at a time: it keeps its buffers.
type Inserter struct {
	conn      *Conn
	statement string
	settings  ch.Settings
	months    atomic.Int32 // partitions that one insert may span
	columns   columns
}

// NewInserter returns an inserter into the facts table of the connection.
func NewInserter(conn *Conn) *Inserter {
	names := make([]string, 0, len(FactColumns()))
	for _, c := range FactColumns() {
		if c.Name != "BrandId" { // always null, which is its default
			names = append(names, quote(c.Name))
		}
	}
	in := &Inserter{
		conn:      conn,
		statement: "INSERT INTO " + conn.Table() + " (" + strings.Join(names, ", ") + ")",
		// An asynchronous insert, or one that a Distributed table has only queued, would be acknowledged before it is in the table
		// (insert_distributed_sync is distributed_foreground_insert by the name that older servers know too).
		settings: ch.Settings{"async_insert": 0, "insert_distributed_sync": 1},
	}
	in.months.Store(monthsPerInsert)
	return in
}

// Insert writes facts with the given IngestionTime and returns when the server has acknowledged all of them. Normally that is
// one insert; facts of more than 100 months take several. After an error some may have been written: write all of them
// again. Errors are Outages, or the server's refusal of a row (see rejected).
func (in *Inserter) Insert(ctx context.Context, facts []*codecs.Fact, ingested time.Time) error {
	for {
		limit := int(in.months.Load())
		err := in.insertAll(ctx, facts, ingested, limit)
		// The server's own limit may be lower than the default.
		if !tooManyPartitions(err) || limit <= 1 {
			return err
		}
		in.months.Store(int32(limit / 2))
	}
}

func (in *Inserter) insertAll(ctx context.Context, facts []*codecs.Fact, ingested time.Time, months int) error {
	for _, part := range splitByMonth(facts, months) {
		if err := in.insert(ctx, part, ingested); err != nil {
			return err
		}
	}
	return nil
}

// splitByMonth returns the facts as they are unless they span more than the given number of months.
func splitByMonth(facts []*codecs.Fact, limit int) [][]*codecs.Fact {
	seen := make(map[int]struct{})
	for _, f := range facts {
		seen[month(f)] = struct{}{}
	}
	if len(seen) <= limit {
		return [][]*codecs.Fact{facts}
	}
	byMonth := make(map[int][]*codecs.Fact, len(seen))
	for _, f := range facts {
		byMonth[month(f)] = append(byMonth[month(f)], f)
	}
	months := make([]int, 0, len(byMonth))
	for m := range byMonth {
		months = append(months, m)
	}
	slices.Sort(months)
	var parts [][]*codecs.Fact
	for group := range slices.Chunk(months, limit) {
		var part []*codecs.Fact
		for _, m := range group {
			part = append(part, byMonth[m]...)
		}
		parts = append(parts, part)
	}
	return parts
}

func month(f *codecs.Fact) int {
	year, m, _ := f.EventTime.UTC().Date()
	return year*12 + int(m)
}

// insert is one INSERT.
func (in *Inserter) insert(ctx context.Context, facts []*codecs.Fact, ingested time.Time) error {
	doing := fmt.Sprintf("take %d facts within %s", len(facts), in.conn.cfg.InsertTimeout)
	own, cancel := context.WithTimeout(ctx, in.conn.cfg.InsertTimeout)
	defer cancel()
	err := in.send(ch.Context(own, ch.WithSettings(in.settings)), facts, ingested)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx) // the caller's end, not the server's fault
	}
	if _, refused := rejected(err); refused || tooManyPartitions(err) {
		return err
	}
	return Explain(err, doing)
}

func (in *Inserter) send(ctx context.Context, facts []*codecs.Fact, ingested time.Time) error {
	b, err := in.conn.PrepareBatch(ctx, in.statement)
	if err != nil {
		return err
	}
	in.columns.fill(facts, ingested)
	for i, values := range in.columns.values() {
		if err := b.Column(i).Append(values); err != nil {
			// The connection is released by the failed Append; Abort only marks the batch.
			if aborting := b.Abort(); aborting != nil {
				return fmt.Errorf("%w (%w)", err, aborting)
			}
			return fmt.Errorf("column %d of %s: %w", i+1, in.conn.Table(), &ch.OpError{Op: "Append", Err: err})
		}
	}
	return b.Send()
}

// columns are the values of an insert by column, in the order of FactColumns without BrandId.
type columns struct {
	factID, sourceEventID, tenantID, isoCode, changeSource []string
	objectID, developerID, projectID                       []uuid.UUID
	buildingID, layoutGroupID, layoutID                    []int64
	area, newPrice, newPerMeter                            []decimal.Decimal
	oldPrice, oldPerMeter                                  []*decimal.Decimal
	currencyID                                             []int16
	eventTime, ingestionTime                               []time.Time
	transformVersion                                       []int32
}

func (c *columns) fill(facts []*codecs.Fact, ingested time.Time) {
	c.reset()
	for _, f := range facts {
		c.factID = append(c.factID, f.FactID)
		c.sourceEventID = append(c.sourceEventID, f.SourceEventID)
		c.objectID = append(c.objectID, f.PropertyObjectID)
		c.developerID = append(c.developerID, f.DeveloperID)
		c.tenantID = append(c.tenantID, f.TenantID)
		c.projectID = append(c.projectID, f.ProjectID)
		c.buildingID = append(c.buildingID, f.BuildingID)
		c.layoutGroupID = append(c.layoutGroupID, f.LayoutGroupID)
		c.layoutID = append(c.layoutID, f.LayoutID)
		c.area = append(c.area, f.AreaTotal)
		c.oldPrice = append(c.oldPrice, pointer(&f.OldPrice))
		c.newPrice = append(c.newPrice, f.NewPrice)
		c.oldPerMeter = append(c.oldPerMeter, pointer(&f.OldPricePerMeter))
		c.newPerMeter = append(c.newPerMeter, f.NewPricePerMeter)
		c.currencyID = append(c.currencyID, f.CurrencyID)
		c.isoCode = append(c.isoCode, f.CurrencyIsoCode)
		c.eventTime = append(c.eventTime, f.EventTime)
		c.ingestionTime = append(c.ingestionTime, ingested)
		c.changeSource = append(c.changeSource, f.ChangeSource)
		c.transformVersion = append(c.transformVersion, f.TransformVersion)
	}
}

func pointer(d *decimal.NullDecimal) *decimal.Decimal {
	if !d.Valid {
		return nil
	}
	return &d.Decimal
}

func (c *columns) values() []any {
	return []any{c.factID, c.sourceEventID, c.objectID, c.developerID, c.tenantID, c.projectID, c.buildingID, c.layoutGroupID, c.layoutID,
		c.area, c.oldPrice, c.newPrice, c.oldPerMeter, c.newPerMeter, c.currencyID, c.isoCode, c.eventTime, c.ingestionTime, c.changeSource,
		c.transformVersion}
}

// reset empties the columns and keeps their memory.
func (c *columns) reset() {
	c.factID, c.sourceEventID, c.tenantID = c.factID[:0], c.sourceEventID[:0], c.tenantID[:0]
	c.isoCode, c.changeSource = c.isoCode[:0], c.changeSource[:0]
	c.objectID, c.developerID, c.projectID = c.objectID[:0], c.developerID[:0], c.projectID[:0]
	c.buildingID, c.layoutGroupID, c.layoutID = c.buildingID[:0], c.layoutGroupID[:0], c.layoutID[:0]
	c.area, c.newPrice, c.newPerMeter = c.area[:0], c.newPrice[:0], c.newPerMeter[:0]
	c.oldPrice, c.oldPerMeter = c.oldPrice[:0], c.oldPerMeter[:0]
	c.currencyID, c.transformVersion = c.currencyID[:0], c.transformVersion[:0]
	c.eventTime, c.ingestionTime = c.eventTime[:0], c.ingestionTime[:0]
}
