// Package tablestore keeps one partition of a Goka table on local disk (design, E2, E3 and section 10). It is Goka's
// storage.Storage over LevelDB with a write buffer, a filter in memory and a rule about offsets.
//
// # What must hold
//
// The changelog is the truth, the directory its cache. A store that reports offset o promises that every write the changelog
// holds up to o is in it; Goka reads the rest. Three things keep that promise:
//
//   - Values and offset travel together. Goka sets the value before its changelog record is acknowledged, so when SetOffset(o)
//     comes, the value is in memory or on disk already; a flush takes writes and offset under one lock and puts both into one
//     synced LevelDB batch. Values may be newer than the offset (E3 allows that), never older.
//   - After recovery only the next offset passes. A jump means that somebody else wrote the records in between: the values are in
//     the changelog but not here (E2). The offset then stays where it is, which costs a longer recovery and nothing else.
//   - A directory that LevelDB would open although something is missing is refused (inspect.go), and what cannot be opened or
//     read is dropped and read again from the changelog. Nothing is repaired in place.
//
// # The filter
//
// Most reads are for keys that do not exist; a filter in memory answers them. It must know every key on disk, or a state that is
// there would look absent. On disk it is a snapshot plus a log of the key hashes of each flush; a flush appends its
// hashes *before* it writes its LevelDB batch, and both carry the number of the flush. On opening, the files are used only when
// they reach the number LevelDB holds; in every other case one scan builds the filter anew. So a filter that is behind the
// disk is never used, whatever was lost, and no key depends on being replayed from the changelog (the keys of writes that
// never reached the changelog would not be).
package tablestore
