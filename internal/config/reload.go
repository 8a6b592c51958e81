package config

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// settle is how long a changed file must be quiet before it is read: editors and Kubernetes write in several steps.
const settle = 200 * time.Millisecond

// longestSettle bounds that: a directory into which something else writes all the time, a log for instance, is never quiet.
const longestSettle = 2 * time.Second

// Reload reads the settings again. It returns the configuration to go on with (the present one with the new values of the
// keys that can change while the program runs), the names of those that changed, and the names of changed keys that need
// a restart. On an error the present configuration stays.
func Reload(src Source, current *Config) (next *Config, changed, needRestart []string, err error) {
	loaded, err := Load(src)
	if err != nil {
		return nil, nil, nil, err
	}
	copied := *current
	next = &copied
	for _, k := range Keys() {
		if k.value(loaded) == k.value(current) {
			continue
		}
		if !k.Reload {
			needRestart = append(needRestart, k.Path)
			continue
		}
		k.field(next).Set(k.field(loaded))
		changed = append(changed, k.Path)
	}
	return next, changed, needRestart, nil
}

// contents is what a file held when it was looked at last: most events in its directory are about other files, and ConfigMaps change a file
// by changing a link beside it. Were each event taken for a change, the program's own log could keep it reloading for ever.
type contents struct {
	file string
	seen string
}

// changed looks at the file, and tells whether it holds something else than before, or cannot be read for another reason.
func (c *contents) changed() bool {
	text, err := os.ReadFile(c.file)
	sum := sha256.Sum256(text)
	now := string(sum[:])
	if err != nil {
		now = err.Error()
	}
	before := c.seen
	c.seen = now
	return now != before
}

// Watcher reloads on a signal and when the file changes.
type Watcher struct {
	Source  Source
	Signals <-chan os.Signal // SIGHUP; nil: none
	Logger  *slog.Logger
	// Apply is given the configuration to go on with whenever a key that can change has changed. One call at a time.
	Apply func(ctx context.Context, next *Config)
}

// Run watches until ctx ends. A configuration with faults is logged and changes nothing.
func (w Watcher) Run(ctx context.Context, current *Config) error {
	var events <-chan fsnotify.Event
	var errs <-chan error
	if w.Source.File != "" {
		watcher, err := fsnotify.NewWatcher()
		if err != nil {
			return fmt.Errorf("watch configuration file: %w", err)
		}
		defer func() { _ = watcher.Close() }() // nothing was written that closing could lose
		// The directory, not the file: editors and ConfigMaps replace the file, and its watch would end with the old one.
		if err := watcher.Add(filepath.Dir(w.Source.File)); err != nil {
			return fmt.Errorf("watch the directory of configuration file %s: %w", w.Source.File, err)
		}
		events, errs = watcher.Events, watcher.Errors
	}
	quiet := time.NewTimer(settle)
	defer quiet.Stop()
	quiet.Stop()
	var since time.Time // of the first event that is not looked into; zero: there is none
	file := contents{file: w.Source.File}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-events:
			if since.IsZero() {
				since = time.Now()
			}
			quiet.Reset(min(settle, max(0, longestSettle-time.Since(since))))
		case err := <-errs:
			w.Logger.LogAttrs(ctx, slog.LevelWarn, "watching the configuration file failed; SIGHUP still reloads it",
				slog.String("event", "config-watch-failed"), slog.Any("error", err))
		case <-quiet.C:
			since = time.Time{}
			if file.changed() {
				current = w.reload(ctx, current)
			}
		case <-w.Signals:
			file.changed() // the signal is obeyed even if not; the event that belongs to the change has then nothing to tell
			current = w.reload(ctx, current)
		}
	}
}

func (w Watcher) reload(ctx context.Context, current *Config) *Config {
	next, changed, needRestart, err := Reload(w.Source, current)
	if err != nil {
		w.Logger.LogAttrs(ctx, slog.LevelError, "the changed configuration is not used: mend it and reload",
			slog.String("event", "config-rejected"), slog.Any("error", err))
		return current
	}
	if len(needRestart) > 0 {
		w.Logger.LogAttrs(ctx, slog.LevelWarn, "changed settings that take effect at the next start",
			slog.String("event", "config-needs-restart"), slog.Any("keys", needRestart))
	}
	if len(changed) > 0 {
		w.Logger.LogAttrs(ctx, slog.LevelInfo, "changed settings taken over",
			slog.String("event", "config-reloaded"), slog.Any("keys", changed))
		w.Apply(ctx, next)
	}
	return next
}
