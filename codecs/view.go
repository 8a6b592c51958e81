package codecs

import (
	"slices"

	"github.com/pin-marketplace/vitrina/internal/record"
)

const (
	viewID = iota
	viewObjectID
	viewSessionID
	viewAnonymousID
	viewUserID
	viewSource
	viewViewedAt
	viewLastActivityAt
	viewDurationSeconds
	viewFilterSnapshot
)

func viewFieldName(i int) string {
	return [...]string{"PropertyObjectViewId", "PropertyObjectId", "SessionId", "AnonymousId", "UserId", "ViewSource", "ViewedAt",
		"LastActivityAt", "DurationSeconds", "FilterSnapshot", ""}[i]
}

// viewSecrets are the fields that identify a person or a device: no reason, log line or endpoint shows their values.
const viewSecrets = 1<<viewSessionID | 1<<viewAnonymousID | 1<<viewUserID

func viewField(name []byte) int {
	switch string(name) {
	case "PropertyObjectViewId", "propertyObjectViewId":
		return viewID
	case "PropertyObjectId", "propertyObjectId":
		return viewObjectID
	case "SessionId", "sessionId":
		return viewSessionID
	case "AnonymousId", "anonymousId":
		return viewAnonymousID
	case "UserId", "userId":
		return viewUserID
	case "ViewSource", "viewSource":
		return viewSource
	case "ViewedAt", "viewedAt":
		return viewViewedAt
	case "LastActivityAt", "lastActivityAt":
		return viewLastActivityAt
	case "DurationSeconds", "durationSeconds":
		return viewDurationSeconds
	case "FilterSnapshot", "filterSnapshot":
		return viewFilterSnapshot
	}
	return -1
}

// ViewCodec reads records of pin.user-activity.property-object-view-ended.v1. Safe for concurrent use.
type ViewCodec struct {
	sources []string // so few that going through them is faster than a map
}

// NewViewCodec makes a codec that knows these names of ViewSource (setting popularity.view_sources; exact case).
func NewViewCodec(knownSources []string) *ViewCodec {
	return &ViewCodec{sources: slices.Clone(knownSources)}
}

// Decode reads one record (specification 002, "Входные данные"; decisions D14, D18 to D24, D30 to D32). An EventId is not needed, a
// negative duration is accepted, FilterSnapshot may be anything. The result shares no memory with the record.
func (c *ViewCodec) Decode(rec *record.Record) (*View, *Fault) {
	m := message{fields: fields{nameOf: viewFieldName, secret: viewSecrets}}
	if fault := m.scan(rec.Value, viewField); fault != nil {
		return nil, fault
	}
	v := &View{}
	m.meta(rec, &v.Meta)
	f := &m.fields
	f.checkRepeated()

	f.id(viewID).put(&v.ViewID)
	f.id(viewObjectID).put(&v.ObjectID)
	v.HasSessionID = f.anyGUID(viewSessionID)
	v.HasAnonymousID = f.anyGUID(viewAnonymousID)
	if f.present(viewUserID) {
		v.HasUserID = f.anyGUID(viewUserID)
	}
	name := f.string(viewSource)
	v.ViewedAt, _ = f.time(viewViewedAt)
	v.LastActivityAt, _ = f.time(viewLastActivityAt)
	v.DurationSeconds = f.int32(viewDurationSeconds)
	if f.fault != nil {
		return nil, f.fault
	}
	v.Source, v.SourceUnknown = UnknownSource, true
	for _, known := range c.sources {
		if string(name) == known {
			v.Source, v.SourceUnknown = known, false
			break
		}
	}
	return v, nil
}

// anyGUID checks a Guid whose value nobody needs, and says whether it names anything: the empty Guid names nobody.
func (f *fields) anyGUID(i int) bool { return f.guid(i) != guid{} }
