package tablestore

// offsetState decides which changelog offset a store may claim. It is pure: Store guards it with its lock.
type offsetState struct {
	value     int64
	known     bool // value holds an offset
	recovered bool // from here on offsets are acknowledgements of our own writes
	follow    bool // a view: offsets are always records read in order

	// fromStart is set when recovery ended with an empty table: the first record then is offset 0, which Goka never
	// reports. writes counts our own records since, to notice when offset 0 was somebody else's.
	fromStart bool
	writes    int64
	// lost means that the changelog contradicted what this store claimed: no offset is claimed until the next recovery.
	lost bool
	// pinned is set while the offset stands still although we were acknowledged a later one.
	pinned bool
}

type verdict int

const (
	passed    verdict = iota // the offset moved
	ignored                  // recovery saw an offset not above the known one
	gap                      // other records lie in between: the offset stays
	regressed                // the changelog contradicts the claimed offset: none is claimed any more
)

// set judges one SetOffset.
func (o *offsetState) set(n int64) verdict {
	v := o.judge(n)
	switch v {
	case passed:
		o.value, o.known, o.pinned = n, true, false
	case gap:
		o.pinned = true
	case regressed:
		o.value, o.known, o.pinned, o.lost = 0, false, true, true
	case ignored:
	}
	return v
}

func (o *offsetState) judge(n int64) verdict {
	switch {
	case o.follow || !o.recovered:
		// Records read from the topic in order: compaction leaves gaps, every higher offset is right.
		if o.known && n <= o.value {
			return ignored
		}
		return passed
	case o.lost:
		return gap
	case o.known && n <= o.value:
		// An acknowledgement at or below what we claim: the log was cut and grew again (unclean election, recreated
		// topic), so records up to value may now be somebody else's.
		return regressed
	case o.known && n != o.value+1, !o.known && (!o.fromStart || n > 1):
		return gap
	case o.fromStart && o.writes < n+1:
		// Offsets 0 to n are n+1 records, more than we wrote: offset 0 is not ours.
		return regressed
	default:
		return passed
	}
}

// wrote counts one record of our own on its way to the changelog.
func (o *offsetState) wrote() {
	if o.recovered {
		o.writes++
	}
}

func (o *offsetState) markRecovered() {
	if o.recovered {
		return
	}
	o.recovered = true
	o.fromStart = !o.known
}
