package model

import "time"

func (m *Model) applyPurchase(ev *event) *fault {
	if _, f := ev.messageID(); f != nil {
		return f
	}
	message, _ := ev.messageID()
	p := ev.payload
	id := p.guid("PurchaseId")
	targets := p.targets()
	weight := p.integer("BoostWeight", 32, 1, 100)
	status := p.oneOf("Status", "Active", "Expired", "Cancelled", "Pending")
	p.when("EndsAt")
	version := p.integer("Version", 64, 1, 0)
	p.guid("TenantId")
	if p.fault != nil {
		return p.fault
	}
	known := m.purchases[id]
	if known == nil {
		known = &purchase{Purchase: Purchase{Targets: map[Ref]bool{}}, messages: map[string]bool{}}
		m.purchases[id] = known
	}
	if known.messages[message] || version < known.Version {
		return nil // a duplicate, or stale
	}
	known.messages[message] = true
	known.Version, known.Status, known.BoostWeight = version, status, int(weight)
	for target := range known.Targets {
		known.Targets[target] = false
	}
	for _, target := range targets {
		known.Targets[target] = true
	}
	return nil
}

func (m *Model) applyView(ev *event, index int) *fault {
	p := ev.payload
	id := p.guid("PropertyObjectViewId")
	object := p.guid("PropertyObjectId")
	p.anyGUID("SessionId")
	p.anyGUID("AnonymousId")
	p.optionalGUID("UserId")
	p.text("ViewSource")
	p.when("ViewedAt")
	p.when("LastActivityAt")
	p.integer("DurationSeconds", 32, 0, 0)
	if p.fault != nil {
		return p.fault
	}
	if _, ok := m.views[id]; !ok {
		m.views[id] = view{object: object, index: index}
	}
	return nil
}

func (m *Model) applyPrice(ev *event) *fault {
	id, f := ev.messageID()
	if f != nil {
		return f
	}
	p := ev.payload
	fact := Fact{FactID: id}
	fact.PropertyObjectID = p.guid("PropertyObjectId")
	fact.DeveloperID = p.guid("DeveloperId")
	fact.ProjectID = p.guid("ProjectId")
	fact.BuildingID = digits(p.integer("BuildingId", 64, 1, 0))
	fact.LayoutGroupID = digits(p.integer("LayoutGroupId", 64, 1, 0))
	fact.LayoutID = digits(p.integer("LayoutId", 64, 1, 0))
	area := p.decimal("AreaTotal")
	oldPrice := p.optionalDecimal("OldPrice")
	newPrice := p.decimal("NewPrice")
	oldPer := p.optionalDecimal("OldPricePerMeter")
	newPer := p.optionalDecimal("NewPricePerMeter")
	fact.CurrencyID = digits(p.integer("CurrencyId", 16, 0, 0))
	fact.CurrencyIsoCode = p.isoCode()
	changed := p.when("ChangedAt")
	if p.optional("Source") != nil {
		p.text("Source")
	}
	if p.optional("Version") != nil {
		p.integer("Version", 33, 0, 0)
	}
	if p.fault != nil {
		return p.fault
	}
	switch {
	case area.round(2).sign() <= 0:
		return invalid("AreaTotal")
	case newPrice.round(2).sign() < 0:
		return invalid("NewPrice")
	case changed.Equal(time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)), changed.After(m.now.Add(time.Hour)):
		return invalid("ChangedAt")
	case changed.Before(time.Unix(0, 0)):
		return outOfRange("ChangedAt")
	}
	if newPer == nil {
		newPer = newPrice.per(area)
	}
	if oldPer == nil && oldPrice != nil {
		oldPer = oldPrice.per(area)
	}
	fact.AreaTotal, f = area.column("AreaTotal", 8)
	for _, c := range []struct {
		field string
		from  *number
		to    *string
	}{
		{"OldPrice", oldPrice, &fact.OldPrice}, {"NewPrice", newPrice, &fact.NewPrice},
		{"OldPricePerMeter", oldPer, &fact.OldPricePerMeter}, {"NewPricePerMeter", newPer, &fact.NewPricePerMeter},
	} {
		if f != nil || c.from == nil {
			continue
		}
		*c.to, f = c.from.column(c.field, 16)
	}
	if f != nil {
		return f
	}
	fact.EventTime = changed.UTC().Truncate(time.Second).Format(time.RFC3339)
	m.facts[id] = fact
	return nil
}
