package codecs

import (
	"log/slog"
	"slices"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// LogAttrs are the fields that the specification wants in the log lines about a view. None of them is personal.
func (v *View) LogAttrs() []slog.Attr {
	return []slog.Attr{
		slog.String("property_object_view_id", v.ViewID.String()), slog.String("property_object_id", v.ObjectID.String()),
		slog.String("view_source", v.Source), slog.Int64("duration_seconds", v.DurationSeconds),
	}
}

// FaultyAttrs are those of a record that breaks its contract: what can be read of it all the same.
func (c *ViewCodec) FaultyAttrs(rec *record.Record) []slog.Attr {
	r := rest{message: message{fields: fields{nameOf: viewFieldName, secret: viewSecrets}}}
	if !r.sound(rec, viewField) {
		return nil
	}
	r.id("property_object_view_id", viewID)
	r.id("property_object_id", viewObjectID)
	if r.present(viewSource) {
		name, source := r.string(viewSource), UnknownSource
		if slices.Contains(c.sources, string(name)) {
			source = string(name)
		}
		r.add(slog.String("view_source", source))
	}
	if r.present(viewDurationSeconds) {
		r.add(slog.Int64("duration_seconds", r.int32(viewDurationSeconds)))
	}
	return r.attrs
}

// LogAttrs are the fields that the specification wants in the log lines about a purchase.
func (p *Purchase) LogAttrs() []slog.Attr {
	return []slog.Attr{slog.String("purchase_id", p.PurchaseID.String()), slog.Int64("version", p.Version)}
}

// FaultyPurchaseAttrs are those of a record that breaks its contract: what can be read of it all the same.
func FaultyPurchaseAttrs(rec *record.Record) []slog.Attr {
	r := rest{message: message{fields: fields{nameOf: purchaseFieldName}}}
	if !r.sound(rec, purchaseField) {
		return nil
	}
	r.id("purchase_id", purchaseID)
	if r.present(purchaseVersion) {
		r.add(slog.Int64("version", r.int64(purchaseVersion)))
	}
	return r.attrs
}

// rest reads single fields of a record that breaks its contract: one that is at fault itself, or came more than once, is left out.
type rest struct {
	message
	attrs []slog.Attr
}

// sound says whether the record is JSON at all.
func (r *rest) sound(rec *record.Record, payloadField func([]byte) int) bool {
	fault := r.scan(rec.Value, payloadField)
	return fault == nil || fault.Code != CodeUndecodable
}

// present says whether a field has one value.
func (r *rest) present(i int) bool { return r.fields.present(i) && r.repeated>>i&1 == 0 }

// add takes the value that was just read, unless it was at fault.
func (r *rest) add(attr slog.Attr) {
	if r.fault == nil {
		r.attrs = append(r.attrs, attr)
	}
	r.fault = nil
}

func (r *rest) id(name string, i int) {
	if r.present(i) {
		r.add(slog.String(name, r.fields.id(i).uuid().String()))
	}
}
