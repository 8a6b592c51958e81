package codecs

import "log/slog"

// LogAttrs are the fields that the specification wants in every log line about a view. None of them is personal.
func (v *View) LogAttrs() []slog.Attr {
	return []slog.Attr{
		slog.String("property_object_view_id", v.ViewID.String()), slog.String("property_object_id", v.ObjectID.String()),
		slog.String("view_source", v.Source), slog.Int64("duration_seconds", v.DurationSeconds),
	}
}

// LogAttrs are the fields that the specification wants in every log line about a purchase.
func (p *Purchase) LogAttrs() []slog.Attr {
	return []slog.Attr{slog.String("purchase_id", p.PurchaseID.String()), slog.Int64("version", p.Version)}
}
