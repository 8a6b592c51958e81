package stream

import (
	"slices"
	"sync"
	"time"
)

// Phase is what a runtime is doing.
type Phase string

// The phases.
const (
	PhaseStarting   Phase = "starting"   // preparing, joining the group, or between two sessions
	PhaseRecovering Phase = "recovering" // reading the table topic into the local store
	PhaseRunning    Phase = "running"
	PhaseStalled    Phase = "stalled" // running, but at least one partition does not progress
	PhaseBackoff    Phase = "backoff" // failed; the next try is at NextTry
	PhaseStopping   Phase = "stopping"
	PhaseStopped    Phase = "stopped"
)

// Recovery is how far one partition of the table is restored.
type Recovery struct {
	Partition int32 `json:"partition"`
	Offset    int64 `json:"offset"` // read so far
	End       int64 `json:"end"`    // to be read
}

// Stall is a partition that does not progress.
type Stall struct {
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	Reason    string    `json:"reason"`
	Since     time.Time `json:"since"`
}

// State is a runtime's state for /readyz, the API and the console.
type State struct {
	Phase    Phase      `json:"phase"`
	Reason   string     `json:"reason,omitempty"`
	Since    time.Time  `json:"since"`
	NextTry  time.Time  `json:"nextTry,omitzero"`
	Restarts int        `json:"restarts"` // processors built after the first one
	Owned    []int32    `json:"owned"`    // partitions of the input
	Recovery []Recovery `json:"recovery,omitempty"`
	Stalls   []Stall    `json:"stalls,omitempty"`
}

// Ready says whether records are processed as they should be.
func (s State) Ready() bool { return s.Phase == PhaseRunning }

// board holds what is written by the run loop and the monitor and read by anybody.
type board struct {
	mu    sync.Mutex
	state State
}

func newBoard(now time.Time) *board {
	return &board{state: State{Phase: PhaseStarting, Since: now}}
}

// update changes the state.
func (b *board) update(now time.Time, change func(*State)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.state.Phase
	change(&b.state)
	if b.state.Phase != before {
		b.state.Since = now
	}
}

// phase sets the phase and its reason.
func (b *board) phase(now time.Time, p Phase, reason string) {
	b.update(now, func(s *State) { s.Phase, s.Reason, s.NextTry = p, reason, time.Time{} })
}

// get returns the state.
func (b *board) get() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.state
	s.Stalls = slices.Clone(s.Stalls)
	return s
}
