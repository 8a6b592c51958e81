package telemetry

import (
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// UnknownViewSource is the view_source label of every source that the configuration does not know.
const UnknownViewSource = "Unknown"

// durationBuckets cover a record that waits for nothing (a fraction of a millisecond) up to one that sat out an outage.
func durationBuckets() []float64 {
	return []float64{0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000, 300000}
}

// batchBuckets reach the largest batch any sink may be set to.
func batchBuckets() []float64 {
	return []float64{1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 20000}
}

// Milliseconds is a duration in the unit of the *_duration_ms histograms.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Promotion holds the metrics of consumer pin-catalog-promotion-boost (specification: "Наблюдаемость и безопасность" of
// the promotion document; contracts section 6). Every field may be used by several goroutines at once.
type Promotion struct {
	Lag                *Lag                 // catalog_promotion_lag_seconds: now - CreatedAt, per partition
	ConsumeDuration    prometheus.Histogram // from the callback to the acknowledged transaction
	CardsRecomputed    prometheus.Counter   // cards whose boost was written
	Stale              prometheus.Counter   // events older than the stored version
	Retries            prometheus.Counter   // tries repeated after an outage or a lock conflict
	DLQ                prometheus.Counter   // dead letters written
	ContractMismatch   prometheus.Counter   // events whose ContractVersion is not 1 (D1)
	PostOnly           prometheus.Counter   // events without a Project or PropertyObject target (D4)
	UnknownTargetKind  prometheus.Counter   // targets of a kind nobody knows (D5)
	Duplicates         prometheus.Counter   // repeated MessageIds
	Rekeyed            prometheus.Counter   // records sent through the loop topic (D29)
	BatchSize          prometheus.Histogram // snapshots in one transaction
	ReconcileDuration  prometheus.Histogram // one pass of the cursor recompute
	CardLockConflicts  prometheus.Counter   // cards read again because their row_version moved
	DirtyCards         prometheus.Gauge     // cards that wait for the recompute
	KeyPartitionDiffer prometheus.Counter   // records that lie in another partition than the hasher says
}

// NewPromotion registers the promotion metrics, all at 0.
func NewPromotion(reg prometheus.Registerer) *Promotion {
	f := factory{reg}
	return &Promotion{
		Lag:               f.lag("catalog_promotion_lag_seconds", "Age of the newest applied purchase event (now - CreatedAt), or of the work that is stuck, by partition."),
		ConsumeDuration:   f.histogram("catalog_promotion_consume_duration_ms", "Milliseconds from receiving a purchase event to its acknowledged transaction.", durationBuckets()),
		CardsRecomputed:   f.counter("catalog_promotion_cards_recomputed_total", "Cards whose PromotionBoost was written."),
		Stale:             f.counter("catalog_promotion_stale_total", "Purchase events skipped because a newer version is stored."),
		Retries:           f.counter("catalog_promotion_retries_total", "Tries repeated after an infrastructure failure or an optimistic lock conflict."),
		DLQ:               f.counter("catalog_promotion_dlq_total", "Purchase events written to the dead-letter topic."),
		ContractMismatch:  f.counter("catalog_promotion_contract_mismatch_total", "Purchase events whose ContractVersion is missing or not 1."),
		PostOnly:          f.counter("catalog_promotion_post_only_total", "Purchase events without a Project or PropertyObject target."),
		UnknownTargetKind: f.counter("catalog_promotion_unknown_target_kind_total", "Targets ignored because their kind is unknown."),
		Duplicates:        f.counter("catalog_promotion_duplicates_total", "Purchase events skipped because their MessageId was applied before."),
		Rekeyed:           f.counter("catalog_promotion_rekeyed_total", "Purchase events sent through the loop topic because their key is not the PurchaseId."),
		BatchSize:         f.histogram("catalog_promotion_batch_size", "Purchase snapshots in one transaction.", batchBuckets()),
		ReconcileDuration: f.histogram("catalog_promotion_reconcile_duration_ms", "Milliseconds of one pass of the cursor recompute.", durationBuckets()),
		CardLockConflicts: f.counter("catalog_promotion_card_lock_conflicts_total", "Cards read again because their row_version moved."),
		DirtyCards:        f.gauge("catalog_promotion_dirty_cards", "Cards that wait for the recompute after a lock conflict."),
		KeyPartitionDiffer: f.counter("catalog_promotion_partition_mismatch_total",
			"Purchase events in another partition than promotion.hasher computes for their key; if it grows, the setting is wrong."),
	}
}

// Popularity holds the metrics of consumer pin-catalog-popularity. Every field may be used by several goroutines at once.
type Popularity struct {
	Lag                *Lag                 // catalog_popularity_lag_seconds: now - CreatedAt, LastActivityAt where missing (D39)
	ConsumeDuration    prometheus.Histogram // from the callback to the acknowledged transaction
	Duplicates         prometheus.Counter   // views counted before
	DelistedSkipped    prometheus.Counter   // views of Delisted cards (INV-7)
	ObjectNotFound     prometheus.Counter   // tries that found no object card
	ProjectMissing     prometheus.Counter   // increments without a project row (fail-open)
	Retries            prometheus.Counter   // tries repeated, outages and missing cards alike
	DLQ                prometheus.Counter   // dead letters written
	ContractMismatch   prometheus.Counter   // events whose ContractVersion is not 1 (D1)
	Rekeyed            prometheus.Counter   // records sent through the loop topic (D16)
	BatchSize          prometheus.Histogram // views in one transaction
	Pending            prometheus.Gauge     // views that wait for their card
	OldestPending      prometheus.Gauge     // age of the oldest of them, seconds
	UnknownViewSource  prometheus.Counter   // views whose source the configuration does not know
	NegativeDuration   prometheus.Counter   // views whose DurationSeconds is below 0
	KeyPartitionDiffer prometheus.Counter   // records that lie in another partition than the hasher says

	incremented *prometheus.CounterVec
	bySource    map[string]prometheus.Counter
}

// NewPopularity registers the popularity metrics, all at 0; sources are the known view sources, Unknown is added.
func NewPopularity(reg prometheus.Registerer, sources []string) *Popularity {
	f := factory{reg}
	p := &Popularity{
		Lag:               f.lag("catalog_popularity_lag_seconds", "Age of the newest counted view (now - CreatedAt), or of the work that is stuck, by partition."),
		ConsumeDuration:   f.histogram("catalog_popularity_consume_duration_ms", "Milliseconds from receiving a view to its acknowledged transaction.", durationBuckets()),
		Duplicates:        f.counter("catalog_popularity_duplicates_total", "Views skipped because their PropertyObjectViewId was handled before."),
		DelistedSkipped:   f.counter("catalog_popularity_delisted_skipped_total", "Views skipped because the object card is Delisted."),
		ObjectNotFound:    f.counter("catalog_popularity_property_object_not_found_total", "Tries that found no card for the viewed object."),
		ProjectMissing:    f.counter("catalog_popularity_project_missing_total", "Views counted without a project, because the project card is missing."),
		Retries:           f.counter("catalog_popularity_retries_total", "Tries repeated after an infrastructure failure or a missing card."),
		DLQ:               f.counter("catalog_popularity_dlq_total", "Views written to the dead-letter topic."),
		ContractMismatch:  f.counter("catalog_popularity_contract_mismatch_total", "Views whose ContractVersion is missing or not 1."),
		Rekeyed:           f.counter("catalog_popularity_rekeyed_total", "Views sent through the loop topic because their key is not the PropertyObjectViewId."),
		BatchSize:         f.histogram("catalog_popularity_batch_size", "Views in one transaction.", batchBuckets()),
		Pending:           f.gauge("catalog_popularity_pending_views", "Views that wait for their object card."),
		OldestPending:     f.gauge("catalog_popularity_oldest_pending_seconds", "Age of the oldest view that waits for its object card."),
		UnknownViewSource: f.counter("catalog_popularity_unknown_view_source_total", "Views whose ViewSource is not in popularity.view_sources."),
		NegativeDuration:  f.counter("catalog_popularity_negative_duration_total", "Views whose DurationSeconds is below 0; they are counted all the same."),
		KeyPartitionDiffer: f.counter("catalog_popularity_partition_mismatch_total",
			"Views in another partition than popularity.hasher computes for their key; if it grows, the setting is wrong."),
		incremented: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "catalog_popularity_incremented_total",
			Help: "Views counted on their object card, by view source.",
		}, []string{"view_source"}),
		bySource: make(map[string]prometheus.Counter),
	}
	reg.MustRegister(p.incremented)
	for _, source := range append(slices.Clone(sources), UnknownViewSource) {
		p.bySource[source] = p.incremented.WithLabelValues(source)
	}
	return p
}

// Incremented is the counter of views counted from a source. A name that was not configured is counted as Unknown, so
// that an event can never make a label value of its own.
func (p *Popularity) Incremented(source string) prometheus.Counter {
	if c, ok := p.bySource[source]; ok {
		return c
	}
	return p.bySource[UnknownViewSource]
}

// Price holds the metrics of consumer invest-analytics-price-history. Every field may be used by several goroutines at once.
type Price struct {
	FactsIngested    prometheus.Counter   // rows ClickHouse acknowledged
	Lag              *Lag                 // invest_analytics_price_ingest_lag_seconds: EventTime -> IngestionTime
	BatchSize        prometheus.Histogram // rows in one insert
	Retries          prometheus.Counter   // inserts repeated
	DLQ              prometheus.Counter   // dead letters written
	ContractMismatch prometheus.Counter   // events whose ContractVersion is not 1 (D1)
	ConsumeDuration  prometheus.Histogram // from the callback to the acknowledged insert
	InsertDuration   prometheus.Histogram // one batch
	NonRUB           prometheus.Counter   // facts in another currency than RUB
	TenantMismatch   prometheus.Counter   // events whose metadata name another tenant than the payload
}

// NewPrice registers the price history metrics, all at 0.
func NewPrice(reg prometheus.Registerer) *Price {
	f := factory{reg}
	return &Price{
		FactsIngested:    f.counter("invest_analytics_price_facts_ingested_total", "Facts acknowledged by ClickHouse."),
		Lag:              f.lag("invest_analytics_price_ingest_lag_seconds", "Age of the newest inserted fact (EventTime to IngestionTime), or of the work that is stuck, by partition."),
		BatchSize:        f.histogram("invest_analytics_price_ingest_batch_size", "Facts in one insert.", batchBuckets()),
		Retries:          f.counter("invest_analytics_price_retries_total", "Inserts repeated after a failure."),
		DLQ:              f.counter("invest_analytics_price_dlq_total", "Price events written to the dead-letter topic."),
		ContractMismatch: f.counter("invest_analytics_price_contract_mismatch_total", "Price events whose ContractVersion is missing or not 1."),
		ConsumeDuration:  f.histogram("invest_analytics_price_consume_duration_ms", "Milliseconds from receiving a price event to its acknowledged insert.", durationBuckets()),
		InsertDuration:   f.histogram("invest_analytics_price_insert_duration_ms", "Milliseconds until a batch was in ClickHouse: one insert, or several where it spans many months or rows are refused, and the dead letters of those.", durationBuckets()),
		NonRUB:           f.counter("invest_analytics_price_non_rub_total", "Facts written in another currency than RUB."),
		TenantMismatch:   f.counter("invest_analytics_price_tenant_mismatch_total", "Price events whose metadata name another tenant than the payload's DeveloperId."),
	}
}

// RegisterBuildInfo registers vitrina_build_info, which is 1 and says in its labels what runs.
func RegisterBuildInfo(reg prometheus.Registerer, version, revision string) {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "vitrina_build_info",
		Help: "Always 1; the labels say which build runs.",
	}, []string{"version", "revision", "goversion"})
	g.WithLabelValues(version, revision, runtime.Version()).Set(1)
	reg.MustRegister(g)
}

// factory registers as it makes. Registering one name twice is a mistake of the program, found by the first test that
// builds it, so it ends it as client_golang does.
type factory struct{ reg prometheus.Registerer }

func (f factory) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	f.reg.MustRegister(c)
	return c
}

func (f factory) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	f.reg.MustRegister(g)
	return g
}

func (f factory) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	f.reg.MustRegister(h)
	return h
}

func (f factory) lag(name, help string) *Lag {
	l := NewLag(name, help, time.Now)
	f.reg.MustRegister(l)
	return l
}
