// Package backoff is the one way this program waits between tries: exponential from Min to Max with jitter, ended by the
// context at once.
package backoff

import (
	"context"
	"fmt"
	"time"

	cenkalti "github.com/cenkalti/backoff/v5"
)

// Config bounds the wait between two tries.
type Config struct {
	Min time.Duration // first wait; 1 s by the specification
	Max time.Duration // longest wait; 60 s by the specification
}

// Default is the specification's 1 s to 60 s.
func Default() Config { return Config{Min: time.Second, Max: time.Minute} }

// Validate returns what is wrong with the configuration, or nil.
func (c Config) Validate() error {
	if c.Min <= 0 || c.Max < c.Min {
		return fmt.Errorf("backoff.min (%s) must be above 0 and backoff.max (%s) not below it", c.Min, c.Max)
	}
	return nil
}

// Backoff counts the tries of one operation. It is not safe for concurrent use: each operation makes its own.
type Backoff struct {
	exp   *cenkalti.ExponentialBackOff
	tries int
}

// New returns a backoff whose waits lie between c.Min and c.Max, the first at about c.Min.
func New(c Config) *Backoff {
	exp := cenkalti.NewExponentialBackOff()
	exp.InitialInterval = c.Min
	exp.MaxInterval = c.Max
	exp.Multiplier = 2
	exp.RandomizationFactor = 0.2
	exp.Reset()
	return &Backoff{exp: exp}
}

// Next returns how long to wait before the next try, for callers that wait on more than a context.
func (b *Backoff) Next() time.Duration {
	b.tries++
	// The jitter goes to both sides; the specification's bounds hold all the same.
	return min(max(b.exp.NextBackOff(), b.exp.InitialInterval), b.exp.MaxInterval)
}

// Tries is the number of waits since the last Reset.
func (b *Backoff) Tries() int { return b.tries }

// Reset starts again at Min: call it after a success.
func (b *Backoff) Reset() {
	b.tries = 0
	b.exp.Reset()
}

// Wait sleeps until the next try is due and returns nil, or returns the context's error as soon as it ends.
func (b *Backoff) Wait(ctx context.Context) error {
	timer := time.NewTimer(b.Next())
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// Sleep waits for d, or until ctx ends: between two looks at what only has to come about.
func Sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
