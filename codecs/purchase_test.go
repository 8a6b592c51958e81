package codecs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func mustPurchase(t testing.TB, d doc) *Purchase {
	t.Helper()
	p, fault := DecodePurchase(enveloped(d))
	require.Nil(t, fault, "%v", fault)
	return p
}

func target(kind, id string) string { return fmt.Sprintf(`{"TargetKind":%q,"TargetId":%q}`, kind, id) }

func targets(items ...string) doc {
	return purchaseDoc().with("Targets", "["+strings.Join(items, ",")+"]")
}

func TestPurchaseFields(t *testing.T) {
	p := mustPurchase(t, purchaseDoc())
	require.Equal(t, developerGUID, p.Meta.TenantID)
	p.Meta = Meta{}
	require.Equal(t, &Purchase{PurchaseID: uuid.MustParse(purchaseGUID), Targets: []Target{{KindProject, uuid.MustParse(projectGUID)},
		{KindPropertyObject, uuid.MustParse(objectGUID)}}, PostTargets: 1, BoostWeight: 50, Status: StatusActive,
		EndsAt: time.Date(2026, 12, 31, 20, 59, 59, 0, time.UTC), Version: 3, TenantID: uuid.MustParse(developerGUID)}, p)
	for _, status := range []Status{StatusActive, StatusExpired, StatusCancelled, StatusPending} {
		require.Equal(t, status, mustPurchase(t, purchaseDoc().with("Status", quoted(string(status)))).Status)
	}
	for raw, want := range map[string]int32{"1": 1, "100": 100} {
		require.Equal(t, want, mustPurchase(t, purchaseDoc().with("BoostWeight", raw)).BoostWeight)
	}
	require.EqualValues(t, 9223372036854775807, mustPurchase(t, purchaseDoc().with("Version", "9223372036854775807")).Version)
	require.Equal(t, uuid.Nil, mustPurchase(t, purchaseDoc().with("TenantId", quoted(emptyGUID))).TenantID, "no rule forbids the empty tenant")
}

func TestPurchaseTargets(t *testing.T) {
	p := mustPurchase(t, targets())
	require.Empty(t, p.Targets, "an empty list is valid (D4)")
	p = mustPurchase(t, targets(target("Post", eventGUID), target("Post", eventGUID)))
	require.Empty(t, p.Targets)
	require.Equal(t, 2, p.PostTargets)

	p = mustPurchase(t, targets(target("PropertyObject", viewGUID), target("Project", projectGUID), target("PropertyObject", objectGUID),
		target("Project", "{"+strings.ToUpper(projectGUID)+"}"), target("PropertyObject", projectGUID), target("PropertyObject", viewGUID)))
	require.Equal(t, []Target{{KindProject, uuid.MustParse(projectGUID)}, {KindPropertyObject, uuid.MustParse(objectGUID)},
		{KindPropertyObject, uuid.MustParse(projectGUID)}, {KindPropertyObject, uuid.MustParse(viewGUID)}}, p.Targets, "each once, in order (D6)")

	p = mustPurchase(t, targets(`{"targetId":"`+objectGUID+`","targetKind":"Project","x":[]}`))
	require.Equal(t, []Target{{KindProject, uuid.MustParse(objectGUID)}}, p.Targets)
}

// Unknown kinds are ignored like Post, whatever their TargetId (D5).
func TestPurchaseUnknownKinds(t *testing.T) {
	p := mustPurchase(t, targets(target("project", projectGUID), target("Story", "x"), target("Story", "y"), `{"TargetKind":"Story"}`,
		`{"TargetKind":"Post","TargetId":5}`, target("", emptyGUID), target("Project", projectGUID)))
	require.Equal(t, []Target{{KindProject, uuid.MustParse(projectGUID)}}, p.Targets)
	require.Equal(t, []string{"project", "Story", ""}, p.UnknownKinds)
	require.Equal(t, 5, p.UnknownTargets)
	require.Equal(t, 1, p.PostTargets)

	var many []string
	for i := range 100 {
		many = append(many, target(fmt.Sprint(strings.Repeat("я", 100), i), projectGUID))
	}
	p = mustPurchase(t, targets(many...))
	require.Equal(t, 100, p.UnknownTargets)
	require.LessOrEqual(t, len(p.UnknownKinds), maxUnknownKinds)
	require.Less(t, len(p.UnknownKinds[0]), maxKindLen+4)
}

func TestPurchaseBrokenTargets(t *testing.T) {
	good := target("Project", projectGUID)
	for item, field := range map[string]string{
		"null": "", "5": "", `"x"`: "", "[]": "", "true": "",
		`{}`: ".TargetKind", `{"TargetKind":null,"TargetId":"` + projectGUID + `"}`: ".TargetKind", `{"TargetKind":1}`: ".TargetKind",
		`{"TargetKind":"\ud800"}`: ".TargetKind", `{"TARGETKIND":"Post"}`: ".TargetKind",
		`{"TargetKind":"Project"}`: ".TargetId", `{"TargetKind":"Project","TargetId":null}`: ".TargetId", `{"TargetKind":"Project","TargetId":5}`: ".TargetId",
		target("PropertyObject", "x"): ".TargetId", target("Project", emptyGUID): ".TargetId",
		`{"TargetKind":"Post","targetKind":"Post"}`:                                                  ".TargetKind",
		`{"TargetKind":"Project","TargetId":"` + projectGUID + `","targetId":"` + projectGUID + `"}`: ".TargetId",
	} {
		_, fault := DecodePurchase(enveloped(targets(good, item, good)))
		requireFault(t, fault, CodeInvalidField, "Targets[1]"+field)
	}
}

func TestPurchaseWithTooManyTargets(t *testing.T) {
	list := func(n int) doc {
		items := make([]string, n)
		for i := range items {
			items[i] = target("PropertyObject", fmt.Sprintf("%08x-0000-4000-8000-000000000000", i+1))
		}
		return targets(items...)
	}
	require.Len(t, mustPurchase(t, list(MaxTargets)).Targets, MaxTargets)
	_, fault := DecodePurchase(enveloped(list(MaxTargets + 1)))
	requireFault(t, fault, CodeValueOutOfRange, "Targets")
}
