package views

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// States of a property object view.
const (
	ViewCounted         = "counted"
	ViewPending         = "pending"          // its object has no card yet, or one that is locked
	ViewDead            = "dead"             // the card never came; dead-lettered
	ViewSkippedDelisted = "skipped-delisted" // the card is Delisted
	ViewMarked          = "marked"           // handled longer ago than the ledger remembers
)

// PropertyObjectView is what became of a view.
type PropertyObjectView struct {
	PropertyObjectViewID uuid.UUID  `json:"propertyObjectViewId"`
	PropertyObjectID     uuid.UUID  `json:"propertyObjectId"`
	State                string     `json:"state"`
	Since                time.Time  `json:"since"`             // when it came into the state; of a marked one, when it was handled
	Source               ViewSource `json:"source"`            // the record that was counted, as it was delivered
	NextTry              *time.Time `json:"nextTry,omitempty"` // of a pending view
	Retries              *int       `json:"retries,omitempty"` // of a pending or dead view
	Code                 string     `json:"code,omitempty"`    // of a dead view
	Reason               string     `json:"reason,omitempty"`  // of a dead view
	LetterDue            bool       `json:"letterDue,omitempty"`
	Freshness            Freshness  `json:"freshness"`
}

// ViewSource is a Source; loop tells that the record came through the group's loop topic, because it lay in another partition than
// its PropertyObjectViewId belongs to.
type ViewSource struct {
	Source
	Loop bool `json:"loop"`
	// Earlier tells that the topic was deleted and created again since: its offset now belongs to another record.
	Earlier bool `json:"earlierTopic,omitempty"`
}

// markMargin is how long a mark of a topic that the ledger has never heard of may wait for its transaction.
const markMargin = 10 * time.Minute

// PropertyObjectView answers from the ledger; what the ledger has forgotten, from the mark in the group table.
func (s *Service) PropertyObjectView(ctx context.Context, id uuid.UUID) (*PropertyObjectView, error) {
	f := s.freshness(ctx, "postgresql", config.RolePopularity)
	var row postgres.View
	var found bool
	var ledger postgres.Ledger
	err := s.withDatabase(ctx, func() (err error) {
		if row, found, err = postgres.ReadView(ctx, s.pool, id); err != nil || found {
			return err
		}
		ledger, err = postgres.ReadLedger(ctx, s.pool)
		return err
	})
	if err != nil {
		return nil, err
	}
	if found {
		return ledgerView(row, f), nil
	}
	none := &NotFoundError{Reason: fmt.Sprintf("no view %s was handled%s", id, f.unseen())}
	if ledger.PrunedBefore.IsZero() && !ledger.Replaying {
		return nil, none // the ledger has never forgotten anything
	}
	value, f, err := s.lookup(ctx, s.marks, config.RolePopularity, id.String())
	switch {
	case notHere(err):
		return nil, s.noMarks(ctx, id)
	case err != nil:
		return nil, err
	case len(value) == 0:
		none.Reason = fmt.Sprintf("no view %s was handled%s", id, f.unseen())
		return nil, none
	}
	mark, err := codecs.DecodeMark(value)
	if err != nil {
		return nil, fmt.Errorf("the mark of view %s: %w", id, err)
	}
	if s.inFlight(mark, ledger) {
		return nil, &UnavailableError{After: time.Second, Reason: fmt.Sprintf("view %s is known by its mark, but the transaction that counts it has not ended yet", id)}
	}
	source := ViewSource{Source: Source{Topic: s.markTopic(mark), Partition: mark.Partition, Offset: mark.Offset}, Loop: mark.Loop, Earlier: s.earlier(mark)}
	return &PropertyObjectView{
		PropertyObjectViewID: id, PropertyObjectID: mark.ObjectID, State: ViewMarked, Since: mark.At.UTC(), Freshness: f,
		Source: source,
	}, nil
}

func ledgerView(row postgres.View, f Freshness) *PropertyObjectView {
	v := &PropertyObjectView{
		PropertyObjectViewID: row.ViewID, PropertyObjectID: row.ObjectID, State: row.State, Since: row.Since.UTC(), Freshness: f,
		Source: ViewSource{Source: Source{Topic: row.Topic, Partition: row.Partition, Offset: row.Offset}, Loop: row.Loop},
	}
	if row.State == postgres.StateSkippedDelisted {
		v.State = ViewSkippedDelisted
	}
	if late := row.Late; late != nil {
		v.Retries, v.Code, v.Reason, v.LetterDue = &late.Retries, late.Code, late.Reason, late.LetterDue
		if !late.NextTry.IsZero() {
			next := late.NextTry.UTC()
			v.NextTry = &next
		}
	}
	return v
}

// inFlight tells whether the record of a mark without a ledger row is still to be counted, rather than long since: records below the
// horizon of their partition are finished, and so are those of an earlier incarnation of the topic.
func (s *Service) inFlight(mark codecs.Mark, ledger postgres.Ledger) bool {
	if s.earlier(mark) {
		return false
	}
	for _, h := range ledger.Horizons {
		if h.Incarnation == mark.Incarnation && h.Loop == mark.Loop && h.Partition == mark.Partition {
			return mark.Offset >= h.Offset
		}
	}
	return s.clock().Sub(mark.At) < markMargin
}

// earlier tells whether a mark was made by a record of a topic that has been deleted and created again since.
func (s *Service) earlier(mark codecs.Mark) bool {
	topic, ok := s.seen().topics[s.markTopic(mark)]
	return ok && stream.Incarnation(topic.ID) != mark.Incarnation
}

func (s *Service) markTopic(mark codecs.Mark) string {
	if mark.Loop {
		return s.popularity.LoopTopic()
	}
	return s.popularity.Topic
}

// noMarks says who could have answered.
func (s *Service) noMarks(ctx context.Context, id uuid.UUID) error {
	here := "this instance does not run the role popularity"
	if role, ok := s.host.Role(config.RolePopularity); ok {
		here = "this instance does not own the partition of the view"
		if !role.Ready {
			here = "the role popularity of this instance is " + role.State
			if role.Reason != "" {
				here += " (" + role.Reason + ")"
			}
		}
	}
	return unavailable("the ledger does not know view %s: whether it was counted longer ago than popularity.ledger_window (%s), or before a rebuild of popularity, "+
		"which empties the ledger, only its mark in the group table says; %s. Ask %s, or set views.marks (VITRINA_VIEWS_MARKS=true) to keep a copy of all marks here",
		id, s.cfg.Popularity.LedgerWindow, here, s.markOwner(ctx, id))
}

// markOwner names the instance that owns the partition of a view's mark, where the broker says which one it is.
func (s *Service) markOwner(ctx context.Context, id uuid.UUID) string {
	owner := "the instance that owns the partition"
	n := s.seen().topics[s.popularity.TableTopic()].Partitions
	if n == 0 {
		return owner
	}
	partition := stream.Hasher(s.cfg.Popularity.Hasher).Partition([]byte(id.String()), n)
	members, err := s.members(ctx)
	if err != nil {
		return owner
	}
	for _, m := range members[s.popularity.Group] {
		if slices.Contains(m.Partitions, partition) {
			return fmt.Sprintf("%s (partition %d: %s)", owner, partition, m.ClientID)
		}
	}
	return owner
}
