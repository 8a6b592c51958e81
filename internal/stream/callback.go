package stream

import (
	"github.com/lovoo/goka"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/internal/stream/guard"
)

// graph is the consumer as Goka sees it.
func (s *Spec) graph(g *guard.Guard, topics runTopics) *goka.GroupGraph {
	wrap := func(cb Callback, topic Topic) goka.ProcessCallback {
		incarnation, n, hasher := Incarnation(topic.ID), topic.Partitions, s.hasher()
		return func(ctx goka.Context, _ any) {
			rec, ok := g.Record(record.ID{Topic: topic.Name, Partition: ctx.Partition(), Offset: ctx.Offset()})
			if !ok {
				return // abandoned before its turn: it comes again, and Goka's finish of it is ignored
			}
			c := &callbackContext{gokaContext: ctx, guard: g, rec: rec, incarnation: incarnation, hasher: hasher, partitions: n}
			cb(c, rec)
			// After its session's end Goka does not panic in Fail and commits whatever returns (design, section 3, fact 3).
			if !c.deferred && ctx.Context().Err() != nil {
				g.AbandonDelivery(rec)
			}
		}
	}
	edges := []goka.Edge{goka.Input(goka.Stream(s.Input), undecoded{}, wrap(s.Callback, topics.source))}
	if s.LoopCallback != nil {
		edges = append(edges, goka.Loop(undecoded{}, wrap(s.LoopCallback, topics.loop)))
	}
	if s.Stateful() {
		edges = append(edges, goka.Persist(s.TableCodec))
	}
	return goka.DefineGroup(goka.Group(s.Group), edges...)
}

// undecoded is the codec of streams: callbacks work on the guard's record, so Goka is given nothing to carry.
type undecoded struct{ codecs.Bytes }

// Decode cannot fail: a codec's error would end the processor.
func (undecoded) Decode([]byte) (any, error) { return nil, nil } //nolint:nilnil // nothing is what there is to carry

// gokaContext gives the embedded context another name than its method Context.
type gokaContext = goka.Context

// callbackContext binds Goka's context to the guard's record.
type callbackContext struct {
	gokaContext
	guard       *guard.Guard
	rec         *record.Record
	hasher      Hasher
	incarnation uint32
	partitions  int32
	deferred    bool
}

// DeferCommit returns a function that finishes the record with nil and abandons it with an error: it comes again, in the next session, and while
// the session goes on that restarts the processor, with its backoff. Goka's own function would
// stop the processor on an error, which is one restart with backoff more at every end of a session.
func (c *callbackContext) DeferCommit() func(error) {
	c.deferred = true
	done := c.gokaContext.DeferCommit()
	g, rec := c.guard, c.rec
	return func(err error) {
		if err != nil {
			g.AbandonDelivery(rec)
		}
		done(nil)
	}
}

func (c *callbackContext) Incarnation() uint32   { return c.incarnation }
func (c *callbackContext) Home(key []byte) int32 { return c.hasher.Partition(key, c.partitions) }
