package harness

import (
	"strconv"
	"strings"
)

// Metric sums the samples of a metric of the instance, over all labels; false when it has none.
func (i *Instance) Metric(name string) (float64, bool) {
	i.s.t.Helper()
	_, body := i.Get("/metrics")
	sum, found := 0.0, false
	for line := range strings.Lines(string(body)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || (rest[0] != ' ' && rest[0] != '{') {
			continue
		}
		fields := strings.Fields(line)
		value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil {
			i.s.t.Fatalf("metric %s: %q", name, line)
		}
		sum, found = sum+value, true
	}
	return sum, found
}
