package codecs

import (
	"time"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// DecodePurchase reads a record of pin.promotion.purchase-changed.v1.
func DecodePurchase(rec *record.Record) (*Purchase, *Fault) { return nil, nil }

// ViewCodec reads records of pin.user-activity.property-object-view-ended.v1. Safe for concurrent use.
type ViewCodec struct{}

// NewViewCodec makes a codec that knows these names of ViewSource (exact case).
func NewViewCodec(knownSources []string) *ViewCodec { return &ViewCodec{} }

// Decode reads one record.
func (c *ViewCodec) Decode(rec *record.Record) (*View, *Fault) { return nil, nil }

// DecodePrice reads a record of pin.chessboard.property-object-price-changed.v1.
func DecodePrice(rec *record.Record, now time.Time) (*Price, *Fault) { return nil, nil }

// DecodeBackfillPrice reads one bare price payload without EventId; its FactID is backfill:{PropertyObjectId}:{ChangedAt:O}.
func DecodeBackfillPrice(payload []byte, now time.Time) (*Price, *Fault) { return nil, nil }
