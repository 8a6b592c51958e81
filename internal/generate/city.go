package generate

import (
	"fmt"
	"math/rand/v2"

	"github.com/google/uuid"

	"github.com/pin-marketplace/vitrina/test/model"
)

// Card is a row to insert into the catalog's card tables.
type Card struct {
	model.Card
	Price     string `json:"price,omitempty"`     // object cards: rubles with two decimals
	MinPrice  string `json:"minPrice,omitempty"`  // project cards
	MaxPrice  string `json:"maxPrice,omitempty"`  // project cards
	Available int    `json:"available,omitempty"` // project cards
}

type project struct {
	id, developer uuid.UUID
	status        string
}

type object struct {
	id                      uuid.UUID
	project                 int
	status                  string
	building, group, layout int64
	area                    int64 // hundredths of a square metre
	price                   int64 // kopecks, moved by the price stream
	sold                    bool  // whether a price event has shown it
}

// city is what events are about. It never changes, but for the objects' prices.
type city struct {
	projects []project
	objects  []object
	ranking  []int // objects by popularity
	homeless []uuid.UUID
	late     map[int]bool
	frozen   []int // initial boost of each object
	hidden   map[string]bool
}

func newCity(o Options) *city {
	s := newSource(o.Seed, 1)
	c := &city{late: map[int]bool{}, hidden: map[string]bool{}, frozen: make([]int, o.Objects)}
	founded := o.Start.AddDate(-1, 0, 0)
	developers := make([]uuid.UUID, 1+o.Projects/4)
	for i := range developers {
		developers[i] = s.id4()
	}
	for range o.Projects {
		c.projects = append(c.projects, project{id: s.id7(founded), developer: pick(s, developers), status: status(s, 0.02, 0.03)})
	}
	for i := range o.Objects {
		p := i % o.Projects
		area := int64(s.between(1800, 18_000))
		obj := object{
			id: s.id7(founded), project: p, status: status(s, 0.05, 0.05), building: int64(100*p + s.between(1, 9)),
			group: int64(s.between(1, 40)), layout: int64(9000 + s.between(1, 400)), area: area,
			price: area * int64(s.between(180_000, 620_000)),
		}
		// Cards that a boost must not touch start with one, so that touching them shows.
		if obj.status != model.Published {
			c.frozen[i] = s.between(0, 60)
		}
		c.objects = append(c.objects, obj)
		if s.chance(o.LateCards) {
			c.late[i] = true
		}
	}
	for _, p := range c.projects {
		c.hidden[p.id.String()] = p.status == model.Hidden
	}
	for _, obj := range c.objects {
		c.hidden[obj.id.String()] = obj.status == model.Hidden
	}
	c.ranking = s.Perm(o.Objects)
	for range 1 + o.Objects/50 {
		c.homeless = append(c.homeless, s.id7(founded))
	}
	return c
}

func status(s source, hidden, delisted float64) string {
	switch x := s.Float64(); {
	case x < hidden:
		return model.Hidden
	case x < hidden+delisted:
		return model.Delisted
	default:
		return model.Published
	}
}

// zipf draws objects as people do: a few very often, most rarely.
func (c *city) zipf(s source) *rand.Zipf {
	return rand.NewZipf(s.Rand, 1.2, 8, uint64(len(c.objects)-1))
}

func (c *city) byRank(z *rand.Zipf) int { return c.ranking[z.Uint64()] }

func (c *city) projectCard(i int) Card {
	p := c.projects[i]
	card := Card{Card: model.Card{Kind: model.Project, ID: p.id.String(), Status: p.status}}
	if p.status == model.Delisted {
		card.PromotionBoost, card.PopularityViews = 7, 70
	}
	low, high := int64(0), int64(0)
	for j := i; j < len(c.objects); j += len(c.projects) {
		if obj := c.objects[j]; obj.status == model.Published {
			if low == 0 || obj.price < low {
				low = obj.price
			}
			high = max(high, obj.price)
			card.Available++
		}
	}
	card.MinPrice, card.MaxPrice = hundredths(low), hundredths(high)
	return card
}

func (c *city) objectCard(i int) Card {
	obj := c.objects[i]
	card := Card{
		Card: model.Card{
			Kind: model.PropertyObject, ID: obj.id.String(), ProjectID: c.projects[obj.project].id.String(),
			Status: obj.status, PromotionBoost: c.frozen[i],
		},
		Price: hundredths(obj.price),
	}
	if obj.status == model.Delisted {
		card.PopularityViews = int64(c.frozen[i])
	}
	return card
}

// hundredths writes kopecks as rubles, hundredths of a metre as metres.
func hundredths(n int64) string { return fmt.Sprintf("%d.%02d", n/100, n%100) }
