package codecs

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// A record that breaks its contract is named in the log by what can be read of it, and never by a person's or a device's id.
func TestWhatIsKnownOfARecordThatBreaksItsContract(t *testing.T) {
	codec := NewViewCodec([]string{"Catalog"})
	view, object := slog.String("property_object_view_id", viewGUID), slog.String("property_object_id", objectGUID)
	source, duration := slog.String("view_source", "Catalog"), slog.Int64("duration_seconds", 42)
	purchase, version := slog.String("purchase_id", purchaseGUID), slog.Int64("version", 3)
	v := doc{{"PropertyObjectViewId", quoted(viewGUID)}, {"PropertyObjectId", quoted(objectGUID)}, {"SessionId", quoted(sessionGUID)},
		{"AnonymousId", quoted(anonymousGUID)}, {"UserId", quoted(userGUID)}, {"ViewSource", quoted("Catalog")}, {"DurationSeconds", "42"}}
	p := doc{{"PurchaseId", quoted(purchaseGUID)}, {"Version", "3"}}
	of := func(d doc) *record.Record { return &record.Record{Value: []byte(d.String())} }
	for name, tt := range map[string]struct {
		got, want []slog.Attr
	}{
		"a field is missing":   {codec.FaultyAttrs(of(v)), []slog.Attr{view, object, source, duration}},
		"in an envelope":       {codec.FaultyAttrs(of(doc{{"Payload", v.String()}})), []slog.Attr{view, object, source, duration}},
		"no object":            {codec.FaultyAttrs(of(v.without("PropertyObjectId"))), []slog.Attr{view, source, duration}},
		"no Guid":              {codec.FaultyAttrs(of(v.with("PropertyObjectViewId", quoted("secret")))), []slog.Attr{object, source, duration}},
		"the empty Guid":       {codec.FaultyAttrs(of(v.with("PropertyObjectId", quoted(emptyGUID)))), []slog.Attr{view, source, duration}},
		"an id twice":          {codec.FaultyAttrs(of(v.plus("PropertyObjectViewId", quoted(userGUID)))), []slog.Attr{object, source, duration}},
		"a null":               {codec.FaultyAttrs(of(v.with("DurationSeconds", "null"))), []slog.Attr{view, object, source}},
		"beyond its type":      {codec.FaultyAttrs(of(v.with("DurationSeconds", "1e9"))), []slog.Attr{view, object, source}},
		"another source":       {codec.FaultyAttrs(of(v.with("ViewSource", quoted(userGUID)))), []slog.Attr{view, object, slog.String("view_source", UnknownSource), duration}},
		"no JSON":              {codec.FaultyAttrs(&record.Record{Value: []byte(v.String()[1:])}), nil},
		"a null value":         {codec.FaultyAttrs(&record.Record{}), nil},
		"purchase":             {FaultyPurchaseAttrs(of(p)), []slog.Attr{purchase, version}},
		"purchase, no version": {FaultyPurchaseAttrs(of(p.with("Version", quoted("3")))), []slog.Attr{purchase}},
		"purchase, no JSON":    {FaultyPurchaseAttrs(&record.Record{Value: []byte("[]")}), nil},
	} {
		require.Equal(t, tt.want, tt.got, name)
	}
}
