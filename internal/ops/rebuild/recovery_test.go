package rebuild_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// holdFetches makes the broker answer no fetch of a topic until release is called.
func (e *env) holdFetches(topic string) (release func()) {
	gate, cluster := make(chan struct{}), e.broker.Cluster()
	cluster.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) { //nolint:revive // the broker's signature
		fetch, ok := r.(*kmsg.FetchRequest)
		if ok && slices.ContainsFunc(fetch.Topics, func(t kmsg.FetchRequestTopic) bool { return t.Topic == topic }) {
			cluster.SleepControl(func() { <-gate })
		}
		return nil, nil, false
	})
	return sync.OnceFunc(func() { close(gate) })
}

// With a fresh disk the instance is not ready while its table is read from Kafka, and /readyz says how far it is.
func TestReadyzSaysHowFarARestoreIs(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	o := options(50)
	o.Views, o.Purchases, o.Homeless, o.LateCards = 300, 0, 0, 0
	i := e.start("one", "popularity")
	require.NoError(t, e.send(o, 0))
	e.equal(time.Minute, e.expected(false, false), views)
	e.caughtUp(viewGroup, viewEnded)
	e.caughtUp(viewGroup, viewGroup+"-loop")
	i.stop()

	release := e.holdFetches(viewGroup + "-table")
	i = e.start("one", "popularity") // on another disk
	t.Cleanup(release)
	readyz := func() (int, string) {
		w := httptest.NewRecorder()
		i.handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		return w.Code, w.Body.String()
	}
	says := regexp.MustCompile(`"state":"recovering","detail":"restoring the table of [1-3] partitions from Kafka: (\d+) of (\d+) offsets"`)
	e.eventually(time.Minute, func() (bool, string) {
		code, body := readyz()
		found := says.FindStringSubmatch(body)
		if code != http.StatusServiceUnavailable || found == nil {
			return false, fmt.Sprintf("%d: %s", code, body)
		}
		read, err := strconv.Atoi(found[1])
		require.NoError(t, err)
		end, err := strconv.Atoi(found[2])
		require.NoError(t, err)
		return read == 0 && end > 0, body
	})
	release()
	e.eventually(time.Minute, func() (bool, string) {
		code, body := readyz()
		return code == http.StatusOK, body
	})
}
