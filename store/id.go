package store

import (
	"encoding/binary"
	"strings"

	"github.com/google/uuid"
)

// NewID makes an id: a UUIDv7 (RFC 9562) behind the prefix that names its kind, as in `evt_0197…`. Ids of one process
// sort by the moment that they were made, which is what the keyset pages of the lists rely on.
func NewID(prefix string) string {
	return prefix + "_" + uuid.Must(uuid.NewV7()).String()
}

// FirstID is the least id that NewID can have made at or after an instant: a UUIDv7 begins with its milliseconds.
func FirstID(prefix string, at Time) string {
	var u uuid.UUID
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(max(at/1000, 0)))
	copy(u[:6], ms[2:])
	u[6] = 0x70 // version 7
	return prefix + "_" + u.String()
}

// MadeAt is when NewID made an id, to the millisecond; not ok for what it cannot have made.
func MadeAt(id string) (at Time, ok bool) {
	_, text, _ := strings.Cut(id, "_")
	u, err := uuid.Parse(text)
	if err != nil || u.Version() != 7 {
		return 0, false
	}
	var ms [8]byte
	copy(ms[2:], u[:6])
	return Time(binary.BigEndian.Uint64(ms[:]) * 1000), true
}
