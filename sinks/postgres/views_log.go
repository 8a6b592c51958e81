package postgres

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
)

// viewLog writes the log events of the specification about views. It asks Allow before it builds a line: at a hundred
// thousand views a second nearly all lines are only counted.
type viewLog struct {
	now func() time.Time // one reading serves a batch's incremented lines

	incrementedEvent, duplicateEvent, delistedEvent, notFoundEvent, projectMissingEvent, revivedEvent, rejectedEvent, lockedEvent, raisedEvent *telemetry.Event
}

func newViewLog(events *telemetry.EventLog) viewLog {
	return viewLog{
		now:                 events.Now,
		incrementedEvent:    events.Event("incremented", slog.LevelInfo),
		duplicateEvent:      events.Event("skipped-duplicate", slog.LevelInfo),
		delistedEvent:       events.Event("skipped-delisted", slog.LevelWarn),
		notFoundEvent:       events.Event("property-object-not-found", slog.LevelWarn),
		projectMissingEvent: events.Event("project-missing", slog.LevelWarn),
		revivedEvent:        events.Event("view-revived", slog.LevelInfo),
		rejectedEvent:       events.Event("view-rejected", slog.LevelError),
		lockedEvent:         events.Event("cards-locked", slog.LevelWarn),
		raisedEvent:         events.Event("card-refused", slog.LevelWarn),
	}
}

func viewAttrs(view, object uuid.UUID, source string, seconds int64, more ...slog.Attr) []slog.Attr {
	return slices.Concat([]slog.Attr{slog.String("consumer", "popularity")}, letterAttrs(view, object, source, seconds), more)
}

// letterAttrs are what the line of a view's dead letter says about the view. A dead view's project is not known: it has no card.
func letterAttrs(view, object uuid.UUID, source string, seconds int64) []slog.Attr {
	v := codecs.View{ViewID: view, ObjectID: object, Source: source, DurationSeconds: seconds}
	return v.LogAttrs()
}

// incremented asks for the project only if the line is written.
func (l *viewLog) incremented(ctx context.Context, now time.Time, view, object uuid.UUID, source string, seconds int64, projectOf func([16]byte) [16]byte) {
	if l.incrementedEvent.AllowAt(ctx, now) {
		l.incrementedEvent.Write(ctx, "the view is counted",
			viewAttrs(view, object, source, seconds, slog.String("project_id", uuid.UUID(projectOf(object)).String()))...)
	}
}

func (l *viewLog) duplicate(ctx context.Context, item *ViewItem) {
	if l.duplicateEvent.Allow(ctx) {
		l.duplicateEvent.Write(ctx, "the view was handled before",
			viewAttrs(item.ViewID, item.ObjectID, item.ViewSource, item.DurationSeconds, slog.String("record", item.Record.ID.String()))...)
	}
}

// delisted asks for the project only if the line is written.
func (l *viewLog) delisted(ctx context.Context, view, object uuid.UUID, source string, seconds int64, projectOf func([16]byte) [16]byte) {
	if l.delistedEvent.Allow(ctx) {
		l.delistedEvent.Write(ctx, "the object's card is Delisted, its counter is frozen",
			viewAttrs(view, object, source, seconds, slog.String("project_id", uuid.UUID(projectOf(object)).String()))...)
	}
}

func (l *viewLog) notFound(ctx context.Context, view, object uuid.UUID, source string, seconds int64, tries int) {
	if l.notFoundEvent.Allow(ctx) {
		l.notFoundEvent.Write(ctx, "the object has no card yet; check the lag of pin.chessboard.property-object-upserted.v1",
			viewAttrs(view, object, source, seconds, slog.Int("tries", tries))...)
	}
}

func (l *viewLog) projectMissing(ctx context.Context, view, object, project uuid.UUID, source string) {
	if l.projectMissingEvent.Allow(ctx) {
		l.projectMissingEvent.Write(ctx, "the view is counted on its object only: the project has no card",
			slog.String("consumer", "popularity"), slog.String("property_object_view_id", view.String()),
			slog.String("property_object_id", object.String()), slog.String("project_id", project.String()), slog.String("view_source", source))
	}
}

func (l *viewLog) revived(ctx context.Context, item *ViewItem) {
	if l.revivedEvent.Allow(ctx) {
		l.revivedEvent.Write(ctx, "a dead view was put back and is processed again",
			viewAttrs(item.ViewID, item.ObjectID, item.ViewSource, item.DurationSeconds, slog.String("record", item.Record.ID.String()))...)
	}
}

func (l *viewLog) rejected(ctx context.Context, item *ViewItem, reason string) {
	l.rejectedEvent.Log(ctx, reason,
		viewAttrs(item.ViewID, item.ObjectID, item.ViewSource, item.DurationSeconds, slog.String("record", item.Record.ID.String()))...)
}

// viewTally sums what a transaction did, so that hooks are called once for each.
type viewTally struct {
	at                                             time.Time // when the transaction was acknowledged
	sources                                        []string
	counts                                         []int
	duplicates, delisted, notFound, projectMissing int
}

// count keeps the few sources in a slice: most views have the last one's.
func (t *viewTally) count(source string) {
	for i, s := range t.sources {
		if s == source {
			t.counts[i]++
			return
		}
	}
	t.sources, t.counts = append(t.sources, source), append(t.counts, 1)
}

func (m *ViewsMetrics) add(t *viewTally) {
	if m.Counted != nil {
		for i, source := range t.sources {
			m.Counted(source, t.counts[i])
		}
	}
	callIf(m.Duplicates, t.duplicates)
	callIf(m.Delisted, t.delisted)
	callIf(m.NotFound, t.notFound)
	callIf(m.ProjectMissing, t.projectMissing)
}

func callIf(hook func(int), n int) {
	if n > 0 {
		call(hook, n)
	}
}

// raised tells of a view that waits because a trigger of the catalog raises an exception when its card is written.
func (l viewLog) raised(ctx context.Context, view uuid.UUID, cause error, attrs ...slog.Attr) {
	l.raisedEvent.Log(ctx, "a trigger of the catalog does not let this view be counted; it waits in the database and is tried again until the trigger lets it",
		append(attrs, slog.String("consumer", "popularity"), slog.String("property_object_view_id", view.String()), slog.String("error", Explain(cause)))...)
}
