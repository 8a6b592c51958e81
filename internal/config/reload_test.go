package config_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/config"
)

func TestReloadTakesOverOnlyWhatCanChange(t *testing.T) {
	file := write(t, "http: {addr: ':1'}\n")
	src := config.Source{File: file}
	current, err := config.Load(src)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte("http: {addr: ':2'}\ncatalog: {promotions: {enabled: false}}\n"), 0o600))
	next, changed, needRestart, err := config.Reload(src, current)
	require.NoError(t, err)
	require.Equal(t, []string{"catalog.promotions.enabled"}, changed)
	require.Equal(t, []string{"http.addr"}, needRestart)
	require.False(t, next.Catalog.Promotions.Enabled)
	require.Equal(t, ":1", next.HTTP.Addr)
	require.True(t, current.Catalog.Promotions.Enabled, "the present configuration is not changed in place")

	require.NoError(t, os.WriteFile(file, []byte("nonsense: 1\n"), 0o600))
	_, _, _, err = config.Reload(src, current)
	require.Error(t, err)
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) contains(text string) func() bool {
	return func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return bytes.Contains(l.b.Bytes(), []byte(text))
	}
}

func TestWatcherFollowsFileAndSignal(t *testing.T) {
	file := write(t, "catalog: {promotions: {enabled: true}}\n")
	src := config.Source{File: file}
	current, err := config.Load(src)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	signals := make(chan os.Signal, 1)
	applied := make(chan bool, 10)
	logs := &logBuffer{}
	done := make(chan error, 1)
	go func() {
		done <- config.Watcher{
			Source: src, Signals: signals, Logger: slog.New(slog.NewJSONHandler(logs, nil)),
			Apply: func(_ context.Context, next *config.Config) { applied <- next.Catalog.Promotions.Enabled },
		}.Run(ctx, current)
	}()
	next := func() bool {
		select {
		case v := <-applied:
			return v
		case <-time.After(20 * time.Second):
			require.Fail(t, "no reload")
			return false
		}
	}
	// As editors and Kubernetes do it: a new file moved over the old one.
	replace := func(text string) {
		other := filepath.Join(filepath.Dir(file), "new")
		require.NoError(t, os.WriteFile(other, []byte(text), 0o600))
		require.NoError(t, os.Rename(other, file))
	}
	// The watch may not stand yet: the signal works from the first moment on.
	replace("catalog: {promotions: {enabled: false}}\n")
	signals <- syscall.SIGHUP
	require.False(t, next())
	replace("catalog: {promotions: {enabled: true}}\nhttp: {addr: ':9'}\n")
	require.True(t, next())
	require.Eventually(t, logs.contains("config-needs-restart"), 20*time.Second, 10*time.Millisecond)
	replace("catalog: [\n")
	require.Eventually(t, logs.contains("config-rejected"), 20*time.Second, 10*time.Millisecond)
	replace("catalog: {promotions: {enabled: false}}\n")
	require.False(t, next())
	cancel()
	require.NoError(t, <-done)
}

// A directory that is never quiet kept every change from being seen.
func TestAChangeIsSeenInADirectoryThatIsNeverQuiet(t *testing.T) {
	file := write(t, "catalog: {promotions: {enabled: true}}\n")
	src := config.Source{File: file}
	current, err := config.Load(src)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { // somebody's log
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			if err := os.WriteFile(filepath.Join(filepath.Dir(file), "other.log"), []byte("x"), 0o600); err != nil {
				t.Error(err)
			}
			<-tick.C
		}
	})
	applied := make(chan bool, 1)
	running.Go(func() {
		watcher := config.Watcher{
			Source: src, Logger: slog.New(slog.DiscardHandler),
			Apply: func(_ context.Context, next *config.Config) { applied <- next.Catalog.Promotions.Enabled },
		}
		if err := watcher.Run(ctx, current); err != nil {
			t.Error(err)
		}
	})
	require.NoError(t, os.WriteFile(file, []byte("catalog: {promotions: {enabled: false}}\n"), 0o600))
	select {
	case enabled := <-applied:
		require.False(t, enabled)
	case <-time.After(20 * time.Second):
		require.Fail(t, "no reload")
	}
}
