package batch

import (
	"context"
	"time"
)

// session is one context that items in the batcher depend on. Fields but ctx are guarded by the batcher's lock.
type session struct {
	ctx     context.Context
	items   int // not settled yet
	unwatch func() bool
	endedAt time.Time // zero while it lives, or until its end has been noticed
}

// sessions watches each live session once, however many items it has: contexts derived by WithValue share their Done
// channel and so their entry.
type sessions struct {
	notify func()
	live   map[<-chan struct{}]*session
	last   *session // the one looked up last: records of one partition come in runs
}

func newSessions(notify func()) sessions {
	return sessions{notify: notify, live: make(map[<-chan struct{}]*session)}
}

// enter counts one more item of ctx's session.
func (s *sessions) enter(ctx context.Context) *session {
	done := doneOf(ctx)
	if done == nil {
		return nil
	}
	e := s.last
	if e == nil || e.ctx.Done() != done {
		if e = s.live[done]; e == nil {
			e = &session{ctx: ctx}
			e.unwatch = context.AfterFunc(ctx, s.notify)
			s.live[done] = e
		}
		s.last = e
	}
	e.items++
	return e
}

// leave is enter's end. The last item out ends the watch, so that sessions which never end leave nothing behind.
func (s *sessions) leave(e *session) {
	if e == nil {
		return
	}
	if e.items--; e.items > 0 {
		return
	}
	e.unwatch()
	delete(s.live, e.ctx.Done())
	if s.last == e {
		s.last = nil
	}
}

// nextRelease notes which sessions have ended by now and returns when the first of them has waited for the given time;
// false if none has ended.
func (s *sessions) nextRelease(now time.Time, grace time.Duration) (time.Time, bool) {
	var next time.Time
	for _, e := range s.live {
		if e.ctx.Err() == nil {
			continue
		}
		if e.endedAt.IsZero() {
			e.endedAt = now
		}
		if at := e.endedAt.Add(grace); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next, !next.IsZero()
}
