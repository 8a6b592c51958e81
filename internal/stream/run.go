package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lovoo/goka"

	"github.com/pin-marketplace/vitrina/internal/stream/guard"
)

// fetchedRecords is how many fetched records wait for the commit guard, for each partition. Sarama counts records and not bytes, so
// it is small; the guard's own buffer, which counts both, is the large one.
const fetchedRecords = 128

// partitionChannel is how many records wait for a partition's callback in Goka.
const partitionChannel = 256

// runTopics are the topics of one run as they were when it started.
type runTopics struct{ source, table, loop Topic }

// run is one Goka processor from its making to its end.
type run struct {
	guard     *guard.Guard
	topics    runTopics
	processor atomic.Pointer[goka.Processor]
	ready     atomic.Int64 // when it was recovered, unix nanoseconds; 0 before
	fail      chan error   // the monitor's reasons to build another one
}

// runOnce prepares, runs one processor and waits for its end. healthy says that it ran well for a while.
func (r *Runtime) runOnce(ctx context.Context, dir *stateDir) (healthy bool, err error) {
	r.board.update(r.clock(), func(s *State) { s.Phase, s.Reason, s.NextTry, s.Stalls = PhaseStarting, "", time.Time{}, nil })
	topics, err := r.prepare(ctx, dir)
	if err != nil {
		return false, err
	}
	run := &run{guard: guard.New(guard.Config{Clock: r.clock}), topics: topics, fail: make(chan error, 1)}
	r.run.Store(run)
	defer func() {
		r.run.Store(nil)
		r.assigned(nil)
	}()

	processing, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.process(processing, run) }()
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		r.watch(processing, run)
	}()

	reason, ended, err := r.await(ctx, run, done)
	cancel()
	<-watching // it writes the phase as well
	if !ended {
		err = r.stop(ctx, done, reason)
	}
	if at := run.ready.Load(); at != 0 {
		healthy = r.clock().Sub(time.Unix(0, at)) >= r.opts.Timing.Healthy
	}
	return healthy, err
}

// await returns when the processor has ended, or must end: ended says which, reason why it must.
func (r *Runtime) await(ctx context.Context, run *run, done <-chan error) (reason error, ended bool, err error) {
	select {
	case err := <-done:
		return nil, true, err
	case <-ctx.Done():
		return nil, false, nil
	case id := <-run.guard.Abandoned():
		return fmt.Errorf("record %s was given up and must come again", id), false, nil
	case err := <-run.fail:
		return err, false, nil
	}
}

// stop waits for the end of a processor whose context was cancelled. Goka waits up to 60 s for deferred commits and for ever
// for a callback; a process that was told to end cannot.
func (r *Runtime) stop(ctx context.Context, done <-chan error, reason error) error {
	r.board.phase(r.clock(), PhaseStopping, "")
	half := time.NewTimer(r.opts.Timing.Stop / 2)
	defer half.Stop()
	full := time.NewTimer(r.opts.Timing.Stop)
	defer full.Stop()
	ending := ctx.Done()
	for {
		select {
		case err := <-done:
			if err != nil { // most likely only that its context was cancelled
				r.log.LogAttrs(ctx, slog.LevelDebug, "the processor has stopped", slog.String("event", "processor-stopped"), slog.String("error", oneLine(err)))
			}
			if reason != nil && err != nil {
				return fmt.Errorf("%w (the processor said: %s)", reason, oneLine(err))
			}
			return reason
		case <-ending: // while it was being stopped for another reason: from now on it is urgent
			ending = nil
			half.Reset(r.opts.Timing.Stop / 2)
			full.Reset(r.opts.Timing.Stop)
		case <-half.C:
			// The broker does not acknowledge: give up what is under way, so that its promises end.
			if err := r.producers.abort(); err != nil {
				return err
			}
		case <-full.C:
			if ctx.Err() != nil {
				return ErrStopTimeout
			}
			const text = "a callback or a sink does not return although its session has ended"
			r.log.LogAttrs(ctx, slog.LevelError, text, slog.String("event", "processor-hangs"))
			r.board.phase(r.clock(), PhaseStopping, text)
		}
	}
}

// prepare looks at topics, epoch and local state, and mends what it may.
func (r *Runtime) prepare(ctx context.Context, dir *stateDir) (runTopics, error) {
	var t runTopics
	if err := r.prepareTopics(ctx); err != nil {
		return t, err
	}
	names := r.spec.consumed()
	if r.spec.Stateful() {
		names = append(names, TableTopic(r.spec.Group))
	}
	wait, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := r.opts.Admin.waitForLeaders(wait, names...); err != nil {
		return t, err
	}
	topics, err := r.opts.Admin.Topics(ctx, names...)
	if err != nil {
		return t, err
	}
	t = runTopics{source: topics[r.spec.Input], table: topics[TableTopic(r.spec.Group)], loop: topics[LoopTopic(r.spec.Group)]}
	positions, err := r.opts.Admin.firstPositions(wait, r.spec.Group, r.spec.Input)
	if err != nil {
		return t, err
	}
	if err := r.checkSource(ctx, t.source, positions[r.spec.Input]); err != nil {
		return t, err
	}
	if !r.spec.Stateful() {
		return t, nil
	}
	var epoch int64
	if r.opts.Epoch != nil {
		if epoch, err = r.opts.Epoch(ctx); err != nil {
			return t, fmt.Errorf("read the epoch of the projection: %w", err)
		}
	}
	return t, dir.prepare(ctx, Meta{
		Group: r.spec.Group, TableTopic: t.table.Name, TableTopicID: t.table.ID,
		SourceTopic: t.source.Name, SourceTopicID: t.source.ID, Epoch: epoch, Partitions: t.source.Partitions, Hasher: r.spec.hasher(),
	}, r.log)
}

func (r *Runtime) prepareTopics(ctx context.Context) error {
	findings, err := r.opts.Admin.Plan(ctx, r.opts.Topics, r.spec.Topics())
	if err != nil || len(findings) == 0 {
		return err
	}
	if !r.opts.CreateTopics {
		return fmt.Errorf("%s (vitrina topics apply does what can be done)", describe(findings))
	}
	done, err := r.opts.Admin.Apply(ctx, findings)
	for _, f := range done {
		r.log.LogAttrs(ctx, slog.LevelInfo, "a topic of this project was mended", slog.String("event", "topic-applied"),
			slog.String("topic", f.Topic), slog.String("problem", f.Problem), slog.Int64("partitions", int64(f.Create)))
	}
	return err
}

// checkSource refuses a source that is not the one the state was made from (design, E6).
func (r *Runtime) checkSource(ctx context.Context, source Topic, positions []Positions) error {
	if r.spec.Stateful() && r.opts.Incarnations != nil {
		now := Accepted{SourceTopicID: source.ID, Partitions: source.Partitions, Hasher: r.spec.hasher()}
		if err := accept(ctx, r.opts.Incarnations, &r.spec, now); err != nil {
			return err
		}
	}
	for p, at := range positions {
		if at.Committed <= at.End {
			continue
		}
		problem := fmt.Sprintf("the committed offset of partition %d (%d) lies above its end (%d), so its records are not those that were processed", p, at.Committed, at.End)
		if r.spec.Stateful() {
			return r.spec.changed(problem)
		}
		r.log.LogAttrs(ctx, slog.LevelWarn, "the topic was recreated or lost records; it is read from its beginning", slog.String("event", "source-changed"), slog.String("problem", problem))
	}
	if r.spec.Check == nil {
		return nil
	}
	return r.spec.Check(ctx, Source{Topic: source.Name, ID: source.ID, Partitions: source.Partitions, Positions: positions})
}

// process makes and runs the processor. Goka's making of one asks the broker without a context, so it happens here, where a
// stop does not wait for it.
func (r *Runtime) process(ctx context.Context, run *run) error {
	options, err := r.gokaOptions(ctx, run)
	if err != nil {
		return err
	}
	p, err := goka.NewProcessor(r.opts.Kafka.Brokers, r.spec.graph(run.guard, run.topics), options...)
	if err != nil {
		return fmt.Errorf("make the processor: %w", err)
	}
	run.processor.Store(p)
	return p.Run(ctx)
}

func (r *Runtime) gokaOptions(ctx context.Context, run *run) ([]goka.ProcessorOption, error) {
	hasher, err := r.spec.hasher().New(run.topics.source.Partitions)
	if err != nil {
		return nil, err
	}
	consumer, err1 := r.opts.Kafka.Sarama(ctx)
	tables, err2 := r.opts.Kafka.Sarama(ctx)
	topics, err3 := r.opts.Kafka.Sarama(ctx)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	consumer.ChannelBufferSize = fetchedRecords
	manager := goka.NewTopicManagerConfig()
	manager.NoCreate = true // topics are created and checked before, by prepareTopics
	group := run.guard.Builder(goka.ConsumerGroupBuilderWithConfig(consumer))
	options := []goka.ProcessorOption{
		goka.WithClientID(r.opts.Kafka.ClientID),
		goka.WithHasher(hasher),
		goka.WithConsumerGroupBuilder(rejoining(group, func(ctx context.Context, claims map[string][]int32) error {
			if err := r.sameTopics(ctx, run.topics); err != nil {
				return err
			}
			r.tellLost(ctx, claims)
			return nil
		}, r.clock)),
		goka.WithConsumerSaramaBuilder(goka.SaramaConsumerBuilderWithConfig(tables)),
		goka.WithTopicManagerBuilder(goka.TopicManagerBuilderWithConfig(topics, manager)),
		goka.WithProducerBuilder(r.producers.builder(ctx, r.opts.Kafka, r.spec.hasher())),
		// Goka's default commits a tombstone at once, past pending work (design, section 3, fact 5).
		goka.WithNilHandling(goka.NilProcess),
		goka.WithPartitionChannelSize(partitionChannel),
		goka.WithBackoffBuilder(func() (goka.Backoff, error) {
			return goka.NewSimpleBackoff(r.opts.Backoff.Min, r.opts.Backoff.Max), nil
		}),
		goka.WithLogger(gokaLog{ctx: ctx, log: r.log}),
		goka.WithRebalanceCallback(func(a goka.Assignment) {
			partitions := make([]int32, 0, len(a))
			for p := range a {
				partitions = append(partitions, p)
			}
			slices.Sort(partitions)
			r.assigned(partitions)
		}),
	}
	if r.spec.Stateful() {
		options = append(options, goka.WithStorageBuilder(r.tables))
		if r.opts.HotStandby {
			// Recovering ahead as well: a newcomer would otherwise hold up the whole group while it restores its copies.
			options = append(options, goka.WithHotStandby(), goka.WithRecoverAhead())
		}
	}
	return options, nil
}

func (r *Runtime) assigned(partitions []int32) {
	if r.opts.OnAssigned != nil {
		r.opts.OnAssigned(partitions)
	}
}

// sameTopics returns an error when a topic is not the one the run was made for. Goka and sarama know topics by name only and
// would go on in another incarnation, under the old one's offsets and state.
func (r *Runtime) sameTopics(ctx context.Context, t runTopics) error {
	var names []string
	for _, topic := range []Topic{t.source, t.table, t.loop} {
		if topic.Name != "" {
			names = append(names, topic.Name)
		}
	}
	now, err := r.opts.Admin.Topics(ctx, names...)
	if err != nil {
		return err
	}
	for _, topic := range []Topic{t.source, t.table, t.loop} {
		if topic.Name == "" {
			continue
		}
		if got := now[topic.Name]; got.ID != topic.ID || got.Partitions != topic.Partitions {
			return &topicChangedError{before: topic, now: got}
		}
	}
	return nil
}

// topicChangedError says that a topic was deleted, created anew or extended under a running processor.
type topicChangedError struct{ before, now Topic }

func (e *topicChangedError) Error() string {
	if e.now.Name == "" {
		return fmt.Sprintf("topic %s was deleted while it was in use", e.before.Name)
	}
	return fmt.Sprintf("topic %s has changed while it was in use: id %s with %d partitions, before %s with %d",
		e.before.Name, e.now.ID, e.now.Partitions, e.before.ID, e.before.Partitions)
}

// phase says what the processor is doing.
func (run *run) phase() (Phase, []Recovery) {
	p := run.processor.Load()
	if p == nil {
		return PhaseStarting, nil
	}
	switch p.StateReader().State() {
	case goka.ProcStateRunning:
		return PhaseRunning, nil
	case goka.ProcStateSetup:
		return PhaseRecovering, run.recovery(p)
	default:
		if progress := run.recovery(p); len(progress) > 0 { // recovering ahead of the first session
			return PhaseRecovering, progress
		}
		return PhaseStarting, nil
	}
}

// recovery lists the partitions that are not restored yet.
func (run *run) recovery(p *goka.Processor) []Recovery {
	var out []Recovery
	for partition, s := range p.Stats().Group {
		if s.TableStats == nil || s.TableStats.Recovery == nil || s.TableStats.Status == goka.PartitionRunning {
			continue
		}
		out = append(out, Recovery{Partition: partition, Offset: s.TableStats.Recovery.Offset, End: s.TableStats.Recovery.Hwm})
	}
	slices.SortFunc(out, func(a, b Recovery) int { return int(a.Partition - b.Partition) })
	return out
}

// watch carries Goka's states over to the board, and logs the progress of a restore.
func (r *Runtime) watch(ctx context.Context, run *run) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	last, since := PhaseStarting, r.clock()
	report := since
	for {
		phase, progress := run.phase()
		now := r.clock()
		if phase != last {
			r.board.phase(now, phase, "")
			if phase == PhaseRunning {
				run.ready.CompareAndSwap(0, now.UnixNano())
				r.log.LogAttrs(ctx, slog.LevelInfo, "the consumer is running", slog.String("event", "consumer-running"),
					slog.Duration("after", now.Sub(since)), slog.Int("partitions", len(r.Owned())))
			}
			last, since, report = phase, now, now
		}
		if len(progress) > 0 && now.Sub(report) >= 10*time.Second {
			report = now
			var at, end int64
			for _, p := range progress {
				at, end = at+p.Offset, end+p.End
			}
			r.log.LogAttrs(ctx, slog.LevelInfo, "the local store is being restored", slog.String("event", "recovery-progress"),
				slog.Int("partitions_left", len(progress)), slog.Int64("offset", at), slog.Int64("end", end))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
