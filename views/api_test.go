package views_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/views"
)

const (
	tenant = "0197c0de-7f00-7a51-9c1e-000000000001"

	project  = "0197c0de-7f00-7a51-9c1e-0000000000a0"
	object   = "0197c0de-7f00-7a51-9c1e-0000000000a1"
	hidden   = "0197c0de-7f00-7a51-9c1e-0000000000a2" // named by version 1 only
	delisted = "0197c0de-7f00-7a51-9c1e-0000000000a3"
	silent   = "0197c0de-7f00-7a51-9c1e-0000000000a4" // hidden, never named
	homeless = "0197c0de-7f00-7a51-9c1e-0000000000a5" // viewed, no card

	bought   = "0197c0de-7f00-7a51-9c1e-0000000000b0"
	postOnly = "0197c0de-7f00-7a51-9c1e-0000000000b1"
	nothing  = "0197c0de-7f00-7a51-9c1e-0000000000ff"

	counted = "0197c0de-7f00-7a51-9c1e-0000000000c0"
	pending = "0197c0de-7f00-7a51-9c1e-0000000000c1"
	skipped = "0197c0de-7f00-7a51-9c1e-0000000000c2"
)

func purchase(id string, version int, status string, targets ...[2]string) map[string]any {
	list := []map[string]string{}
	for _, t := range targets {
		list = append(list, map[string]string{"TargetKind": t[0], "TargetId": t[1]})
	}
	return map[string]any{"PurchaseId": id, "Targets": list, "BoostWeight": 50, "Status": status, "EndsAt": "2030-12-31T23:59:59+03:00", "Version": version, "TenantId": tenant}
}

func view(id, of string) map[string]any {
	now := time.Now().UTC().Format(time.RFC3339)
	return map[string]any{"PropertyObjectViewId": id, "PropertyObjectId": of, "SessionId": uuid.NewString(), "AnonymousId": uuid.NewString(), "UserId": nil,
		"ViewSource": "Catalog", "ViewedAt": now, "LastActivityAt": now, "DurationSeconds": 42, "FilterSnapshot": nil}
}

func price(of, changed, amount string) map[string]any {
	return map[string]any{"PropertyObjectId": of, "DeveloperId": tenant, "ProjectId": project, "BuildingId": 101, "LayoutGroupId": 7, "LayoutId": 9001, "AreaTotal": "50.00",
		"OldPrice": nil, "NewPrice": amount, "OldPricePerMeter": nil, "NewPricePerMeter": nil, "CurrencyId": 643,
		"CurrencySnapshot": map[string]any{"CurrencyId": 643, "IsoCode": "RUB", "Name": "Рубль", "Sign": "₽"}, "ChangedAt": changed, "Source": "Talent", "Version": 17}
}

// TestAPI plays a few events through one instance with every role and asks it and instances with the role api alone. Every answer,
// errors included, is held to the OpenAPI document by instance.get.
func TestAPI(t *testing.T) {
	s := newSystem(t)
	s.exec(`INSERT INTO catalog.project_cards (id, status) VALUES ($1, 'Published')`, project)
	s.exec(`INSERT INTO catalog.property_object_cards (id, project_id, status, promotion_boost) VALUES ($1, $5, 'Published', 0), ($2, $5, 'Hidden', 0), ($3, $5, 'Delisted', 7), ($4, $5, 'Hidden', 3)`,
		object, hidden, delisted, silent, project)
	all := s.start(nil, "promotion", "popularity", "price", "api")
	alone := s.start(nil, "api")
	withMarks := s.start(func(c *config.Config) { c.Views.Marks, c.Instance.ID = true, "marks" }, "api")
	askers := map[string]*instance{"all": all, "alone": alone, "with marks": withMarks}

	s.send(purchases, bought, purchase(bought, 1, "Active", [2]string{"PropertyObject", hidden}))
	partition, offset := s.send(purchases, bought, purchase(bought, 2, "Active", [2]string{"Project", project}, [2]string{"PropertyObject", object}, [2]string{"Post", nothing}))
	s.send(purchases, postOnly, purchase(postOnly, 1, "Active", [2]string{"Post", nothing}))
	viewPartition, viewOffset := s.send(viewEnded, counted, view(counted, object))
	s.send(viewEnded, pending, view(pending, homeless))
	s.send(viewEnded, skipped, view(skipped, delisted))
	s.send(prices, object, price(object, "2026-10-01T00:30:00+03:00", "5000000"))
	s.send(prices, object, price(object, "2026-10-01T10:00:00Z", "5500000.005"))

	eventually(t, func(c require.TestingT) {
		for _, i := range askers {
			p := value[views.Pipelines](c, i.get("/api/v1/pipelines"))
			for _, pipeline := range p.Pipelines {
				require.NotNil(c, pipeline.Lag)
				require.Zero(c, *pipeline.Lag, pipeline.Consumer)
			}
			require.Equal(c, http.StatusOK, i.ready())
			require.Equal(c, int64(2), value[views.Purchase](c, i.get("/api/v1/purchases/"+bought)).Version)
		}
		require.Equal(c, 100, value[views.Card](c, all.get("/api/v1/cards/PropertyObject/"+object)).PromotionBoost)
	})

	for name, i := range askers {
		t.Run(name, func(t *testing.T) {
			t.Run("purchase", func(t *testing.T) {
				for _, form := range []string{bought, strings.ToUpper(bought), "%7B" + bought + "%7D"} {
					p := value[views.Purchase](t, i.get("/api/v1/purchases/"+form))
					require.Equal(t, bought, p.PurchaseID.String())
					require.Equal(t, views.Source{Topic: purchases, Partition: partition, Offset: offset}, p.Source)
					require.EqualValues(t, 50, p.BoostWeight)
					require.Equal(t, "2030-12-31T20:59:59Z", p.EndsAt.Format(time.RFC3339))
					require.Equal(t, []views.PurchaseTarget{
						{Kind: "Project", ID: uuid.MustParse(project), Active: true, Named: true},
						{Kind: "PropertyObject", ID: uuid.MustParse(object), Active: true, Named: true},
						{Kind: "PropertyObject", ID: uuid.MustParse(hidden)},
					}, p.Targets)
					require.Zero(t, *p.Freshness.Lag["promotion"])
					if i == all {
						require.Equal(t, "owner", p.Freshness.ServedBy)
					} else {
						require.Equal(t, "view", p.Freshness.ServedBy)
						require.Zero(t, *p.Freshness.ViewLag)
					}
				}
				require.Contains(t, i.expect(t, 404, "/api/v1/purchases/"+postOnly), "no purchase "+postOnly)
				require.Contains(t, i.expect(t, 404, "/api/v1/purchases/"+nothing), "no purchase")
			})
			t.Run("target", func(t *testing.T) {
				x := value[views.Target](t, i.get("/api/v1/targets/Project/"+project))
				require.Equal(t, 50, x.Boost)
				require.Len(t, x.Contributions, 1)
				require.True(t, x.Contributions[0].Active)
				x = value[views.Target](t, i.get("/api/v1/targets/PropertyObject/"+hidden))
				require.Zero(t, x.Boost)
				require.False(t, x.Contributions[0].Active, "version 2 dropped it")
				i.expect(t, 404, "/api/v1/targets/PropertyObject/"+silent)
			})
			t.Run("card", func(t *testing.T) {
				for id, want := range map[string]struct {
					boost, own, cascaded int
					reason               string
				}{
					object: {100, 1, 1, "the sum of its own and its project's"}, hidden: {50, 0, 1, "Hidden, but purchases named it"},
					delisted: {7, 0, 1, "frozen at 7"}, silent: {3, 0, 1, "no purchase ever named it"},
				} {
					c := value[views.Card](t, i.get("/api/v1/cards/PropertyObject/"+id))
					require.Equal(t, want.boost, c.PromotionBoost, c.Explanation.Reason)
					require.Len(t, c.Explanation.Own, want.own)
					require.Len(t, c.Explanation.Cascaded, want.cascaded)
					require.Contains(t, c.Explanation.Reason, want.reason)
					require.Equal(t, project, c.ProjectID.String())
				}
				c := value[views.Card](t, i.get("/api/v1/cards/Project/"+project))
				require.Nil(t, c.ProjectID)
				require.EqualValues(t, 1, c.PopularityViews)
				i.expect(t, 404, "/api/v1/cards/Project/"+object)
			})
			t.Run("view", func(t *testing.T) {
				v := value[views.PropertyObjectView](t, i.get("/api/v1/property-object-views/"+strings.ToUpper(counted)))
				require.Equal(t, "counted", v.State)
				require.Equal(t, object, v.PropertyObjectID.String())
				require.Equal(t, views.Source{Topic: viewEnded, Partition: viewPartition, Offset: viewOffset}, v.Source.Source)
				v = value[views.PropertyObjectView](t, i.get("/api/v1/property-object-views/"+pending))
				require.Equal(t, "pending", v.State)
				require.NotNil(t, v.NextTry)
				require.Equal(t, "skipped-delisted", value[views.PropertyObjectView](t, i.get("/api/v1/property-object-views/"+skipped)).State)
				require.Contains(t, i.expect(t, 404, "/api/v1/property-object-views/"+nothing), "was handled")
			})
			t.Run("price history", func(t *testing.T) {
				base := "/api/v1/property-objects/" + object + "/price-history"
				h := value[views.PriceHistory](t, i.get(base+"?step=day&from=&to="))
				require.Len(t, h.Series.Series, 2)
				require.Equal(t, "2026-09-30", h.Series.Series[0].Period)
				require.Equal(t, "5500000.01", h.Series.Series[1].Price)
				require.Equal(t, "10", h.GrowthPercent.String())
				require.Nil(t, value[views.PriceHistory](t, i.get(base+"?step=year")).GrowthPercent)
				require.Len(t, value[views.PriceHistory](t, i.get(base+"?from="+url.QueryEscape("2026-10-01T03:00:00+03:00"))).Series.Series, 1)
				i.expect(t, 404, "/api/v1/property-objects/"+nothing+"/price-history")
			})
			t.Run("pipelines", func(t *testing.T) {
				p := value[views.Pipelines](t, i.get("/api/v1/pipelines"))
				for _, pipeline := range p.Pipelines {
					require.Len(t, pipeline.Members, 1)
					require.Empty(t, pipeline.Problems)
					require.Zero(t, *pipeline.DLQDepth)
					require.Equal(t, i == all, pipeline.Here)
					if i != all {
						require.Equal(t, "elsewhere", pipeline.State)
					}
				}
				require.EqualValues(t, 1, *p.Pipelines[1].Pending)
				require.NotNil(t, p.Pipelines[1].Oldest)
			})
			t.Run("bad requests", func(t *testing.T) {
				for path, detail := range map[string]string{
					"/api/v1/purchases/7":                                                                          "no id",
					"/api/v1/purchases/0197c0de7f007a519c1e0000000000b0":                                           "no id",
					"/api/v1/purchases/urn:uuid:" + bought:                                                         "no id",
					"/api/v1/purchases/%7B" + bought:                                                               "no id",
					"/api/v1/purchases/" + strings.Repeat("x", 5000):                                               "…",
					"/api/v1/targets/Post/" + project:                                                              "Project or PropertyObject",
					"/api/v1/targets/project/" + project:                                                           "Project or PropertyObject",
					"/api/v1/cards/Project/x":                                                                      "no id",
					"/api/v1/cards/Card/" + project:                                                                "Project or PropertyObject",
					"/api/v1/property-object-views/x":                                                              "no id",
					"/api/v1/property-objects/x/price-history":                                                     "no id",
					"/api/v1/property-objects/" + object + "/price-history?step=week":                              "day, month or year",
					"/api/v1/property-objects/" + object + "/price-history?step=Day":                               "day, month or year",
					"/api/v1/property-objects/" + object + "/price-history?from=yesterday":                         "RFC 3339",
					"/api/v1/property-objects/" + object + "/price-history?to=2026-11-30T00:00:00":                 "RFC 3339",
					"/api/v1/property-objects/" + object + "/price-history?to=2026-11-30T00:00:00+03:00":           "%2B",
					"/api/v1/property-objects/" + object + "/price-history?step=day&from=2026-13-30T00:00:00Z&to=": "RFC 3339",
				} {
					require.Contains(t, i.expect(t, 400, path), detail, path)
				}
			})
		})
	}

	t.Run("a dead view", func(t *testing.T) {
		s.exec(`UPDATE vitrina.late_views SET next_try = now()`)
		eventually(t, func(c require.TestingT) {
			v := value[views.PropertyObjectView](c, alone.get("/api/v1/property-object-views/"+pending))
			require.Equal(c, "dead", v.State)
			require.Equal(c, "CATALOG_SYNC_PROPERTY_OBJECT_NOT_FOUND", v.Code)
			p := value[views.Pipelines](c, alone.get("/api/v1/pipelines")).Pipelines[1]
			require.EqualValues(c, 1, *p.DLQDepth)
			require.EqualValues(c, 1, *p.DLQ.Dead)
		})
	})
	t.Run("dead letters", func(t *testing.T) {
		const list, replay = "/api/v1/dead-letters?consumer=popularity", "/admin/dead-letters/replay"
		for _, consumer := range []string{"promotion", "popularity", "price"} {
			require.Equal(t, 200, alone.get("/api/v1/dead-letters?consumer="+consumer).status)
		}
		require.Equal(t, 200, alone.get(list+"&state=waiting&limit=1&since=2026-01-01T00:00:00Z").status)
		for path, detail := range map[string]string{"/api/v1/dead-letters": "promotion, popularity or price", "/api/v1/dead-letters?consumer=x": "promotion", list + "&limit=0": "limit",
			list + "&since=x": "since", list + "&state=x": "state", list + "&cursor=x": ""} {
			require.Contains(t, alone.expect(t, 400, path), detail)
		}
		letters := value[struct{ Items []struct{ ID, Code string } }](t, alone.get(list)).Items
		require.Len(t, letters, 1)
		require.Equal(t, "CATALOG_SYNC_PROPERTY_OBJECT_NOT_FOUND", letters[0].Code)
		for body, status := range map[string]int{`{}`: 422, ``: 422, `{"consumer":"popularity"}`: 422, `{"consumer":"x","all":true}`: 400, `{"consumer":"popularity","ids":["x"]}`: 400,
			`{"consumer":"popularity","ids":["0@99999"]}`: 404, `{"konsumer":"x"}`: 400, `{"consumer":"popularity","all":true,"dryRun":true}`: 200} {
			a := alone.call("POST", replay, body)
			require.Equal(t, status, a.status, "%s: %s", body, a.body)
		}
		s.exec(`INSERT INTO catalog.property_object_cards (id, project_id, status) VALUES ($1, $2, 'Published')`, homeless, project)
		require.Equal(t, 200, alone.call("POST", replay, `{"consumer":"popularity","ids":["`+letters[0].ID+`"]}`).status)
		eventually(t, func(c require.TestingT) {
			require.Equal(c, "counted", value[views.PropertyObjectView](c, alone.get("/api/v1/property-object-views/"+pending)).State)
			require.Equal(c, 200, alone.get(list+"&state=all").status)
		})
	})
	t.Run("a view that the ledger has forgotten", func(t *testing.T) {
		s.exec(`DELETE FROM vitrina.views WHERE view_id = $1`, counted)
		s.exec(`UPDATE vitrina.views_ledger SET pruned_before = now()`)
		path := "/api/v1/property-object-views/" + counted
		for _, i := range []*instance{all, withMarks} {
			eventually(t, func(c require.TestingT) { // the horizon is not moved yet: its transaction might be under way
				require.Contains(c, i.get(path).problem(c).Detail, "has not ended")
			})
		}
		s.exec(`UPDATE vitrina.horizons SET horizon_offset = 1000`)
		for name, i := range map[string]*instance{"owner": all, "view": withMarks} {
			v := value[views.PropertyObjectView](t, i.get(path))
			require.Equal(t, "marked", v.State)
			require.Equal(t, object, v.PropertyObjectID.String())
			require.Equal(t, views.Source{Topic: viewEnded, Partition: viewPartition, Offset: viewOffset}, v.Source.Source)
			require.Equal(t, name, v.Freshness.ServedBy)
			i.expect(t, 404, "/api/v1/property-object-views/"+nothing)
		}
		// It spoke only of the ledger's window after a rebuild, and named no owner.
		a := alone.get(path)
		require.Equal(t, http.StatusServiceUnavailable, a.status)
		for _, part := range []string{"or before a rebuild of popularity", "does not run the role popularity", fmt.Sprintf("(partition %d: vitrina-i-", viewPartition), "views.marks"} {
			require.Contains(t, a.problem(t).Detail, part)
		}
	})
	t.Run("a rebuild", func(t *testing.T) {
		s.exec(`UPDATE vitrina.projections SET state = 'closed' WHERE name = 'promotion-boost'`)
		eventually(t, func(c require.TestingT) {
			require.Contains(c, alone.get("/api/v1/purchases/"+bought).problem(c).Detail, "being rebuilt")
			require.Contains(c, value[views.Card](c, alone.get("/api/v1/cards/Project/"+project)).Freshness.Note, "being rebuilt")
			require.Equal(c, "held", value[views.Pipelines](c, all.get("/api/v1/pipelines")).Pipelines[0].State)
		})
		s.exec(`UPDATE vitrina.projections SET state = 'open'`)
		eventually(t, func(c require.TestingT) { require.Equal(c, 200, alone.get("/api/v1/purchases/"+bought).status) })
	})
	t.Run("nobody consumes, and what waits is stated", func(t *testing.T) {
		all.stop()
		s.send(purchases, bought, purchase(bought, 3, "Expired", [2]string{"Project", project}))
		eventually(t, func(c require.TestingT) {
			p := value[views.Purchase](c, alone.get("/api/v1/purchases/"+bought))
			require.EqualValues(c, 2, p.Version)
			require.EqualValues(c, 1, *p.Freshness.Lag["promotion"])
			require.EqualValues(c, 1, *value[views.Card](c, alone.get("/api/v1/cards/Project/"+project)).Freshness.Lag["promotion"])
			require.Contains(c, alone.get("/api/v1/purchases/"+nothing).problem(c).Detail, "1 events are still to be processed")
			require.Equal(c, "nowhere", value[views.Pipelines](c, alone.get("/api/v1/pipelines")).Pipelines[0].State)
		})
	})
	t.Run("the broker is away", func(t *testing.T) {
		require.NoError(t, s.broker.Stop(t.Context()))
		eventually(t, func(c require.TestingT) {
			require.Contains(c, alone.get("/api/v1/purchases/"+bought).problem(c).Detail, "broker")
		})
		card := value[views.Card](t, alone.get("/api/v1/cards/Project/"+project))
		require.Nil(t, card.Freshness.Lag["promotion"])
		require.Contains(t, card.Freshness.Note, "broker")
		p := value[views.Pipelines](t, alone.get("/api/v1/pipelines")).Pipelines[0]
		require.Equal(t, "unknown", p.State)
		require.Nil(t, p.Lag)
		require.NotEmpty(t, p.Problems)
	})
}

// TestNothingThere starts the role api with no topics, no PostgreSQL and no ClickHouse.
func TestNothingThere(t *testing.T) {
	s := newSystem(t)
	i := s.start(func(c *config.Config) {
		c.Postgres.DSN, c.ClickHouse.DSN, c.HTTP.RequestTimeout = "postgres://vitrina:s3cret@127.0.0.1:1/x?sslmode=disable", "", 3*time.Second
	}, "api")
	require.Equal(t, http.StatusServiceUnavailable, i.ready())
	require.Contains(t, i.expect(t, 503, "/api/v1/purchases/"+bought), "is being read")
	for _, path := range []string{"/api/v1/targets/Project/" + project, "/api/v1/cards/Project/" + project, "/api/v1/property-object-views/" + counted} {
		detail := i.expect(t, 503, path)
		require.Contains(t, detail, "PostgreSQL is out of reach")
		require.NotContains(t, detail, "s3cret")
	}
	require.Contains(t, i.expect(t, 503, "/api/v1/property-objects/"+object+"/price-history"), "VITRINA_CLICKHOUSE_DSN")
	p := value[views.Pipelines](t, i.get("/api/v1/pipelines"))
	require.Equal(t, "nowhere", p.Pipelines[0].State)
	require.NotEmpty(t, p.Pipelines[0].Problems)
	require.Equal(t, http.StatusServiceUnavailable, i.ready())
	doc, err := openapi3.NewLoader().LoadFromData(i.get("/api/v1/openapi.json").body)
	require.NoError(t, err)
	require.NoError(t, doc.Validate(t.Context(), openapi3.IsOpenAPI31OrLater()))
	require.NotNil(t, doc.Paths.Value("/api/v1/openapi.json"))
}

// An api that could not keep its copies said that it was reading them for the first time.
func TestTheAPISaysWhyItCannotKeepItsCopies(t *testing.T) {
	s := newSystem(t)
	_, err := kadm.NewClient(s.producer).CreateTopic(t.Context(), 2, 1, nil, config.PromotionConsumer().TableTopic())
	require.NoError(t, err)
	i := s.start(func(c *config.Config) {
		c.State.Dir = filepath.Join(c.State.Dir, "file")
		require.NoError(t, os.WriteFile(c.State.Dir, nil, 0o600))
	}, "api")
	eventually(t, func(c require.TestingT) {
		w := httptest.NewRecorder()
		i.handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		require.Equal(c, http.StatusServiceUnavailable, w.Code)
		require.Contains(c, w.Body.String(), "cannot be kept and is tried again: create the state directory")
	})
}

// TestTheFlagIsOffAndNothingEverRan: an instance whose promotion consumer is switched off is ready (D35).
func TestTheFlagIsOffAndNothingEverRan(t *testing.T) {
	s := newSystem(t)
	i := s.start(func(c *config.Config) { c.Catalog.Promotions.Enabled = false }, "promotion", "api")
	eventually(t, func(c require.TestingT) { require.Equal(c, http.StatusOK, i.ready()) })
	i.expect(t, 503, "/api/v1/purchases/"+bought)
}

// expect asks for a refusal and returns its detail.
func (i *instance) expect(t *testing.T, status int, path string) string {
	t.Helper()
	a := i.get(path)
	require.Equal(t, status, a.status, string(a.body))
	require.Equal(t, status == 503, a.header.Get("Retry-After") != "")
	return a.problem(t).Detail
}
