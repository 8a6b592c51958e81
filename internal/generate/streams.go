package generate

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/test/model"
)

// stream makes the valid events of one topic, one after the other.
type stream interface {
	draft(at time.Time) draft
}

// session is one visitor on his way through the catalog.
type session struct {
	id, anonymous uuid.UUID
	user          string // JSON
}

type viewStream struct {
	forms
	o        Options
	city     *city
	popular  *rand.Zipf
	sessions []session
}

func newViewStream(o Options, c *city) *viewStream {
	s := newSource(o.Seed, 2)
	return &viewStream{forms: forms{s, o.Bare, o.Traced}, o: o, city: c, popular: c.zipf(s)}
}

func (v *viewStream) draft(at time.Time) draft {
	if len(v.sessions) == 0 || v.s.IntN(4) == 0 {
		visitor := session{id: v.s.personal(), anonymous: v.s.personal(), user: "null"}
		if v.s.IntN(3) == 0 {
			visitor.user = strconv.Quote(v.s.personal().String())
		}
		v.sessions = append(v.sessions, visitor)
		if len(v.sessions) > 100 {
			v.sessions = slices.Delete(v.sessions, 0, 50)
		}
	}
	visitor := pick(v.s, v.sessions)
	viewed := v.city.objects[v.city.byRank(v.popular)].id
	if v.s.chance(v.o.Homeless) {
		viewed = pick(v.s, v.city.homeless)
	}
	duration := int64(v.s.ExpFloat64() * 40)
	if v.s.IntN(1000) == 0 {
		duration = -1
	}
	// A view is closed after 10 to 15 minutes without activity.
	last := at.Add(-time.Duration(v.s.between(600, 900)) * time.Second)
	opened := last.Add(-time.Duration(max(0, duration)) * time.Second)
	id := v.s.id7(opened)

	d := v.meta(config.TopicViewEnded, "PropertyObjectView", id, "", at)
	p := &d.payload
	p.text("PropertyObjectViewId", v.guid(id))
	p.text("PropertyObjectId", v.guid(viewed))
	p.text("SessionId", visitor.id.String())
	p.text("AnonymousId", visitor.anonymous.String())
	p.add("UserId", visitor.user)
	p.text("ViewSource", viewSource(v.s))
	p.text("ViewedAt", v.moment(opened))
	p.text("LastActivityAt", v.moment(last))
	p.number("DurationSeconds", duration)
	filter := "null"
	if v.s.IntN(5) == 0 {
		filter = `{"Rooms":[1,2],"PriceTo":` + strconv.Itoa(v.s.between(5, 40)) + `000000,"District":"Хамовники"}`
	}
	p.add("FilterSnapshot", filter)
	if v.s.chance(v.o.WrongKeys) {
		v.misplace(&d, id)
	}
	return d
}

func viewSource(s source) string {
	switch x := s.IntN(100); {
	case x < 60:
		return "Catalog"
	case x < 86:
		return "Search"
	case x < 98:
		return "Selection"
	default:
		return "Telegram"
	}
}

// campaign is one purchase of promotion over its life.
type campaign struct {
	id, tenant uuid.UUID
	targets    []model.Ref
	posts      []string // raw JSON of targets of other kinds
	weight     int
	version    int64
	left       int // versions still to come
	ends       time.Time
}

type purchaseStream struct {
	forms
	o       Options
	city    *city
	popular *rand.Zipf
	open    []*campaign
}

func newPurchaseStream(o Options, c *city) *purchaseStream {
	s := newSource(o.Seed, 3)
	return &purchaseStream{forms: forms{s, o.Bare, o.Traced}, o: o, city: c, popular: c.zipf(s)}
}

func (p *purchaseStream) start(at time.Time) *campaign {
	c := &campaign{
		id: p.s.id7(at), tenant: p.s.id4(), weight: p.s.between(1, 100), left: p.s.between(1, 4),
		ends: at.AddDate(0, 0, p.s.between(7, 60)),
	}
	for range p.s.between(1, 3) {
		if p.s.IntN(4) == 0 {
			c.targets = append(c.targets, model.Ref{Kind: model.Project, ID: pick(p.s, p.city.projects).id.String()})
			continue
		}
		i := p.city.byRank(p.popular)
		if p.s.IntN(2) == 0 {
			i = p.s.IntN(len(p.city.objects))
		}
		c.targets = append(c.targets, model.Ref{Kind: model.PropertyObject, ID: p.city.objects[i].id.String()})
	}
	if p.s.IntN(5) == 0 {
		c.posts = append(c.posts, `{"TargetKind":"Post","TargetId":"`+p.s.id4().String()+`"}`)
	}
	switch p.s.IntN(100) {
	case 0, 1, 2: // about posts alone
		c.targets, c.posts = nil, append(c.posts, `{"TargetKind":"Post","TargetId":"`+p.s.id4().String()+`"}`)
	case 3: // a kind nobody knows yet
		c.posts = append(c.posts, `{"TargetKind":"Story","TargetId":"`+p.s.id4().String()+`"}`)
	case 4: // the same target twice
		c.targets = append(c.targets, c.targets[0])
	}
	return c
}

func (p *purchaseStream) draft(at time.Time) draft {
	var c *campaign
	if len(p.open) == 0 || p.s.IntN(5) < 2 {
		c = p.start(at)
		p.open = append(p.open, c)
	} else {
		c = pick(p.s, p.open)
	}
	c.version++
	c.left--
	status := "Active"
	switch {
	case c.version == 1 && p.s.IntN(20) == 0:
		status = "Pending"
	case c.left == 0 && c.version > 1 && p.s.IntN(3) > 0:
		status = pick(p.s, []string{"Expired", "Cancelled"})
	case c.version > 1:
		p.change(c)
	}
	if c.left == 0 {
		p.open = slices.DeleteFunc(p.open, func(other *campaign) bool { return other == c })
	}
	d := p.meta(config.TopicPurchaseChanged, "PromotionPurchase", c.id, c.tenant.String(), at)
	targets := slices.Clone(c.posts)
	for _, t := range c.targets {
		targets = append(targets, `{"TargetKind":"`+t.Kind+`","TargetId":"`+t.ID+`"}`)
	}
	b := &d.payload
	b.text("PurchaseId", p.guid(c.id))
	b.add("Targets", "["+strings.Join(targets, ",")+"]")
	b.number("BoostWeight", int64(c.weight))
	b.text("Status", status)
	b.text("EndsAt", p.moment(c.ends))
	b.number("Version", c.version)
	b.text("TenantId", c.tenant.String())
	if p.s.chance(p.o.WrongKeys) {
		p.misplace(&d, c.id)
	}
	return d
}

// change is what a new version of a running campaign changes: its weight, or one target less. A Hidden card is never
// dropped: whether it then keeps its boost depends on the order of the versions (D27).
func (p *purchaseStream) change(c *campaign) {
	c.weight = p.s.between(1, 100)
	if len(c.targets) < 2 || p.s.IntN(2) == 0 {
		return
	}
	i := p.s.IntN(len(c.targets))
	if p.city.hidden[c.targets[i].ID] {
		return
	}
	c.targets = slices.Delete(slices.Clone(c.targets), i, i+1)
}

type priceStream struct {
	forms
	o       Options
	city    *city
	popular *rand.Zipf
}

func newPriceStream(o Options, c *city) *priceStream {
	s := newSource(o.Seed, 4)
	return &priceStream{forms: forms{s, o.Bare, o.Traced}, o: o, city: c, popular: c.zipf(s)}
}

func (p *priceStream) draft(at time.Time) draft {
	obj := &p.city.objects[p.city.byRank(p.popular)]
	if p.s.IntN(2) == 0 {
		obj = &p.city.objects[p.s.IntN(len(p.city.objects))]
	}
	owner := p.city.projects[obj.project]
	old, oldPer := "null", "null"
	if obj.sold {
		old = p.decimal(obj.price)
		if p.s.IntN(3) == 0 {
			oldPer = hundredths(obj.price * 100 / obj.area)
		}
	}
	obj.sold = true
	obj.price = max(100_000_00, obj.price+obj.price/1000*int64(p.s.between(-30, 40)))
	newPer := "null"
	if p.s.IntN(3) == 0 {
		newPer = hundredths(obj.price * 100 / obj.area)
	}
	currency, iso, currencyName := "643", "RUB", "Российский рубль"
	if p.s.IntN(100) == 0 {
		currency, iso, currencyName = "840", "USD", "Доллар США"
	}
	changed := at
	if p.o.PriceHistory > 0 && p.s.IntN(3) == 0 {
		changed = at.Add(-time.Duration(p.s.Int64N(int64(p.o.PriceHistory))))
	}
	tenant := owner.developer.String()
	if p.s.IntN(200) == 0 {
		tenant = p.s.id4().String()
	}
	d := p.meta(config.TopicPriceChanged, "PropertyObject", obj.id, tenant, at)
	b := &d.payload
	b.text("PropertyObjectId", p.guid(obj.id))
	b.text("DeveloperId", p.guid(owner.developer))
	b.text("ProjectId", owner.id.String())
	b.number("BuildingId", obj.building)
	b.number("LayoutGroupId", obj.group)
	b.number("LayoutId", obj.layout)
	b.add("AreaTotal", hundredths(obj.area))
	b.add("OldPrice", old)
	b.add("NewPrice", p.decimal(obj.price))
	b.add("OldPricePerMeter", oldPer)
	b.add("NewPricePerMeter", newPer)
	b.add("CurrencyId", currency)
	b.add("CurrencySnapshot", `{"CurrencyId":`+currency+`,"IsoCode":"`+iso+`","Name":"`+currencyName+`","Sign":null}`)
	b.text("ChangedAt", p.moment(changed))
	if p.s.IntN(20) > 0 {
		b.text("Source", "Talent")
		b.number("Version", int64(p.s.between(1, 1000)))
	}
	return d
}

// decimal writes a price as a JSON number or, now and then, as a string or with more digits than the column keeps.
func (p *priceStream) decimal(kopecks int64) string {
	switch p.s.IntN(20) {
	case 0:
		return strconv.Quote(hundredths(kopecks))
	case 1:
		return hundredths(kopecks) + "5"
	}
	return hundredths(kopecks)
}
