package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Letter counts dead letters of one source topic and code.
type Letter struct {
	Topic string `json:"topic"` // the source topic
	Code  string `json:"code"`
}

// Actual is what was found in databases and dead-letter topics. A nil map is not compared.
type Actual struct {
	Cards       map[Ref]CardState
	Targets     map[Ref]int // vitrina.promotion_targets; targets that were never named may be missing, or there with 0
	Facts       map[string]Fact
	DeadLetters map[Letter]int
	LateViews   map[string]string // view -> pending or dead
	Ledger      map[string]int    // views by state, of a ledger that was not pruned
}

// Difference is one thing that is not as it must be.
type Difference struct {
	What string `json:"what"`
	Want string `json:"want"`
	Got  string `json:"got"`
}

// String is one line for a person.
func (d Difference) String() string { return fmt.Sprintf("%s: want %s, got %s", d.What, d.Want, d.Got) }

// Letters counts the expected dead letters.
func (e *Expected) Letters() map[Letter]int {
	out := map[Letter]int{}
	for _, l := range e.DeadLetters {
		out[Letter{l.Topic, l.Code}]++
	}
	return out
}

// late are the views that never found their card. Nothing stays pending.
func (e *Expected) late() map[string]string {
	out := maps.Clone(e.Views)
	maps.DeleteFunc(out, func(_, state string) bool { return state != dead })
	return out
}

// ledger counts the views by their state. Each view has one state, so a view that is there twice, or in a second state, shows.
func (e *Expected) ledger() map[string]int {
	out := map[string]int{}
	for _, state := range e.Views {
		out[state]++
	}
	return out
}

// Compare lists every difference, in a stable order; none means that the program did what the model says.
func Compare(want *Expected, got *Actual) []Difference {
	var out []Difference
	out = append(out, differ("card", want.Cards, got.Cards, compareRefs)...)
	targets := maps.Clone(got.Targets)
	maps.DeleteFunc(targets, func(ref Ref, sum int) bool {
		_, named := want.Targets[ref]
		return !named && sum == 0
	})
	out = append(out, differ("target", want.Targets, targets, compareRefs)...)
	out = append(out, differ("fact", want.Facts, got.Facts, cmp.Compare[string])...)
	out = append(out, differ("dead letters", want.Letters(), got.DeadLetters, func(a, b Letter) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Code, b.Code))
	})...)
	out = append(out, differ("late view", want.late(), got.LateViews, cmp.Compare[string])...)
	out = append(out, differ("views in state", want.ledger(), got.Ledger, cmp.Compare[string])...)
	return out
}

func compareRefs(a, b Ref) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID)) }

func differ[K, V comparable](what string, want, got map[K]V, order func(a, b K) int) []Difference {
	if got == nil {
		return nil
	}
	keys := slices.Collect(maps.Keys(want))
	for key := range got {
		if _, ok := want[key]; !ok {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, order)
	var out []Difference
	for _, key := range keys {
		w, wanted := want[key]
		g, found := got[key]
		if wanted == found && w == g {
			continue
		}
		out = append(out, Difference{What: fmt.Sprintf("%s %v", what, key), Want: show(w, wanted), Got: show(g, found)})
	}
	return out
}

func show(v any, there bool) string {
	if !there {
		return "nothing"
	}
	return fmt.Sprintf("%+v", v)
}
