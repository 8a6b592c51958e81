package codecs

import (
	"time"

	"github.com/google/uuid"
	"github.com/shopspring/decimal"
)

// Meta is what the envelope, or the record's headers, say about an event (contracts, section 1).
//
// Precedence, field by field: the envelope where it carries the field and it is not null, else the header of that name, else (EventId
// and CreatedAt only) the CloudEvents header. An envelope value that is unusable still wins: it is left empty here, not replaced.
type Meta struct {
	MessageID        uuid.UUID // EventId / MessageId / ce_id; uuid.Nil when missing, empty or no Guid
	HasMessageID     bool
	AggregateID      string // informative; empty when missing or no string
	AggregateType    string
	TenantID         string
	CreatedAt        time.Time // zero when missing or no time
	ContractVersion  int64     // 0 when missing or no integer
	ContractMismatch bool      // ContractVersion is not 1 (D1): warn, count, process
}

// Status is the status of a purchase. Only Active makes its contributions count.
type Status string

// The statuses of the contract; names compare exactly.
const (
	StatusActive    Status = "Active"
	StatusExpired   Status = "Expired"
	StatusCancelled Status = "Cancelled"
	StatusPending   Status = "Pending" // valid, inactive (D2)
)

// TargetKind is the kind of a card that a purchase promotes.
type TargetKind string

// The kinds that are ours; Post belongs to news, others are unknown (D5).
const (
	KindProject        TargetKind = "Project"
	KindPropertyObject TargetKind = "PropertyObject"
)

// Target is one card addressed by a purchase.
type Target struct {
	Kind TargetKind
	ID   uuid.UUID
}

// Purchase is a decoded PromotionPurchaseChanged.
type Purchase struct {
	Meta           // HasMessageID is always true (D22)
	PurchaseID     uuid.UUID
	Targets        []Target // Project and PropertyObject only, each once (D6), sorted by kind and id
	PostTargets    int      // entries of kind Post
	UnknownKinds   []string // distinct kinds that are neither ours nor Post (D5), shortened, at most maxUnknownKinds
	UnknownTargets int      // entries of those kinds
	BoostWeight    int32    // 1..100
	Status         Status
	EndsAt         time.Time // UTC
	Version        int64     // >= 1
	TenantID       uuid.UUID // the payload's; the envelope's is Meta.TenantID
}

// View is a decoded PropertyObjectViewEnded. It holds no value of UserId, AnonymousId or SessionId, so none can leak from it.
type View struct {
	Meta
	ViewID          uuid.UUID
	ObjectID        uuid.UUID
	Source          string // a known name or UnknownSource
	SourceUnknown   bool   // the event named a source outside the setting: warn
	ViewedAt        time.Time
	LastActivityAt  time.Time
	DurationSeconds int64 // an int32 by contract; below 0 is accepted: warn
	HasUserID       bool
	HasAnonymousID  bool
	HasSessionID    bool
}

// UnknownSource is what a ViewSource outside the known names is counted as.
const UnknownSource = "Unknown"

// Price is a decoded PropertyObjectPriceChanged, mapped to its fact.
type Price struct {
	Meta
	Fact
	ChangedAt      time.Time // as sent: fraction and offset kept; EventTime is the column's form of it
	NonRUB         bool      // IsoCode is not "RUB": warn
	TenantMismatch bool      // the metadata name another tenant than DeveloperId: warn
	Source         string    // for the log only
	Version        uint32    // for the log only
}

// Fact is one row of pin_analytics.property_object_price_history_facts without what the sink itself adds (IngestionTime) and
// what is always null (BrandId). Every value fits its column: no Fact can make an insert fail (D13).
type Fact struct {
	FactID           string // canonical EventId; backfill:{PropertyObjectId}:{ChangedAt:O} for backfilled rows
	SourceEventID    string // same as FactID
	PropertyObjectID uuid.UUID
	DeveloperID      uuid.UUID
	TenantID         string // DeveloperID as text (ADR-0052)
	ProjectID        uuid.UUID
	BuildingID       int64
	LayoutGroupID    int64
	LayoutID         int64
	AreaTotal        decimal.Decimal     // Decimal(10,2), > 0
	OldPrice         decimal.NullDecimal // Decimal(18,2)
	NewPrice         decimal.Decimal     // Decimal(18,2), >= 0
	OldPricePerMeter decimal.NullDecimal // Decimal(18,2)
	NewPricePerMeter decimal.Decimal     // Decimal(18,2)
	CurrencyID       int16
	CurrencyIsoCode  string    // valid UTF-8
	EventTime        time.Time // UTC, whole seconds, within DateTime
	ChangeSource     string    // "talent-sync"
	TransformVersion int32     // 1
}

// Origin says which record made a state (design, E3). Coordinates are those of the record as delivered: the loop topic's own for a
// looped record. Two origins are the same record exactly when they are equal.
type Origin struct {
	Incarnation uint32 // first 4 bytes, big endian, of the id (Kafka uuid) of the delivering topic
	Loop        bool   // delivered by the group's loop topic
	Partition   int32
	Offset      int64
}

// Mark is the popularity group table's value: the view is known, by which record, for which object and since when.
type Mark struct {
	Origin
	ObjectID uuid.UUID
	At       time.Time // UTC, whole seconds, 1970..2106
}

// MarkKind says how the mark of a view relates to the record at hand. What becomes of the view is the sink's to decide, in the
// transaction that counts it (design, E4): a mark is a filter and a long memory, never a proof.
type MarkKind int

// The kinds. The zero value is none of them.
const (
	MarkNone    MarkKind = iota + 1 // no mark yet: to the ledger
	MarkOwn                         // made by this very record, delivered again: to the ledger (E3)
	MarkForeign                     // made by another record: to the ledger while younger than its window, else a duplicate
	MarkEarlier                     // made by a record of an earlier incarnation of the same topic: finished and foreign (section 12.3)
)

// String is the kind's name in logs.
func (k MarkKind) String() string {
	switch k {
	case MarkNone:
		return "none"
	case MarkOwn:
		return "own"
	case MarkForeign:
		return "foreign"
	case MarkEarlier:
		return "earlier"
	}
	return "unknown"
}

// MessageRef is a message that was taken into account for a purchase.
type MessageRef struct {
	ID      uuid.UUID
	Version int64
}

// PurchaseState is the promotion group table's value: the snapshot applied last and what recognises repeats. Values are shared
// between the table, the sink and the API: never change one, make another.
type PurchaseState struct {
	Origin                // of the record that made the snapshot; a skip never changes it (E3)
	Version         int64 // the event's
	Revision        int64 // counts snapshots of one Version from 0: the sink's guard compares (Version, Revision)
	Status          Status
	BoostWeight     int32
	EndsAt          time.Time // UTC
	Targets         []Target  // what the snapshot names, sorted by kind and id
	EverTargets     []Target  // Targets and what earlier snapshots named, sorted; the dropped ones are inactive contributions (D3, D27)
	Topic           string    // coordinates of the original record, for people and the API
	SourcePartition int32
	SourceOffset    int64
	MessageIDs      []MessageRef // newest MaxMessageIDs, by Version, then as they came
	EverKnown       bool         // some snapshot named a Project or PropertyObject; without it the purchase is unknown to the replica (D4)
}
