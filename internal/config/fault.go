package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Fault is one thing wrong with the configuration.
type Fault struct {
	Key     string `json:"key"`              // the setting
	Source  string `json:"source,omitempty"` // where its value came from: a file, a variable, a flag; empty for a default
	Problem string `json:"problem"`          // what is wrong and what to write instead; never a secret's value
}

// Faults is everything that is wrong, reported at once: an operator who mends one fault a start is soon tired.
type Faults []Fault //nolint:errname // it is what an operator reads: the configuration has 3 faults

// Error lists the faults, one a line.
func (f Faults) Error() string {
	var b strings.Builder
	if len(f) == 1 {
		b.WriteString("the configuration has a fault:")
	} else {
		fmt.Fprintf(&b, "the configuration has %d faults:", len(f))
	}
	for _, fault := range f {
		b.WriteString("\n  - " + fault.Key)
		if fault.Source != "" {
			b.WriteString(" (" + fault.Source + ")")
		}
		b.WriteString(": " + fault.Problem)
	}
	return b.String()
}

// faults collects while a configuration is read.
type faults struct {
	list    Faults
	sources map[string]string // of each key that was set
}

func (f *faults) add(key, problem string, args ...any) {
	f.list = append(f.list, Fault{Key: key, Source: f.sources[key], Problem: fmt.Sprintf(problem, args...)})
}

func (f *faults) addFrom(source, key, problem string, args ...any) {
	f.list = append(f.list, Fault{Key: key, Source: source, Problem: fmt.Sprintf(problem, args...)})
}

// err returns the faults in the order of the reference, or nil.
func (f *faults) err() error {
	if len(f.list) == 0 {
		return nil
	}
	order := make(map[string]int)
	for i, k := range Keys() {
		order[k.Path] = i + 1
	}
	slices.SortStableFunc(f.list, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(order[a.Key], order[b.Key]), cmp.Compare(a.Key, b.Key))
	})
	return f.list
}

// nearest returns the known name most like the given one, and false if none is.
func nearest(name string, known []string) (string, bool) {
	best, bestDistance := "", len(name)
	for _, k := range known {
		d := distance(name, k)
		// Somebody who forgets the section writes "brokers" for "kafka.brokers".
		if last := k[strings.LastIndexAny(k, ".")+1:]; last == name[strings.LastIndexAny(name, ".")+1:] {
			d = min(d, 2)
		}
		if d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best, best != "" && bestDistance <= max(2, len(name)/2)
}

// distance is the Levenshtein distance of two names.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
