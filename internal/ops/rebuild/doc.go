// Package rebuild runs the operations of design section 11: rebuilds of the two PostgreSQL projections and replays of price
// history. An operation is a row of vitrina.operations. Whichever process holds its lease does the step that the row names
// and records it; every step can be repeated, so an operation goes on after the death of any party:
//
//	check     what would go wrong is said before anything is touched; the ends to catch up with are noted
//	close     the projection's row is closed: instances leave the group, their writes are refused
//	leave     the group is seen empty
//	epoch     raised: whatever still runs under the old one is refused for ever
//	offsets   Kafka's side: group offsets, and for promotion from the topic the group table and loop topic
//	reset     PostgreSQL's side, in one transaction with the reopening: instances return
//	catch-up  the group has finished what the source topic held at the check
//	loop      and then what its loop topic holds
//	finish    the operation ends
package rebuild
