package store

import (
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Time is an instant in UTC, kept as microseconds since the Unix epoch.
//
// An integer means the same to SQLite and PostgreSQL, compares as it sorts in both, and costs no parsing where thousands
// of rows a second pass. In JSON and GraphQL it is RFC 3339 with its fraction.
type Time int64

// Now is the present instant, cut to the microsecond.
func Now() Time { return At(time.Now()) }

// At converts t, cutting it to the microsecond.
func At(t time.Time) Time { return Time(t.UnixMicro()) }

// Time is the instant as the standard library's type, in UTC.
func (t Time) Time() time.Time { return time.UnixMicro(int64(t)).UTC() }

// Add is t moved by d.
func (t Time) Add(d time.Duration) Time { return t + Time(d.Microseconds()) }

// Sub is the time from u to t.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t-u) * time.Microsecond }

// Unix is t in seconds since the epoch, as the `event.timestamp` of the specification has it.
func (t Time) Unix() float64 { return float64(t) / 1e6 }

func (t Time) String() string { return t.Time().Format(time.RFC3339Nano) }

// MarshalJSON writes RFC 3339 in UTC.
func (t Time) MarshalJSON() ([]byte, error) {
	b := append(make([]byte, 0, len(time.RFC3339Nano)+2), '"')
	return append(t.Time().AppendFormat(b, time.RFC3339Nano), '"'), nil
}

// UnmarshalJSON reads RFC 3339.
func (t *Time) UnmarshalJSON(b []byte) error {
	var s time.Time
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	*t = At(s)
	return nil
}

// Value writes the integer: bun takes a pointer to whatever marshals JSON for a document otherwise.
func (t Time) Value() (driver.Value, error) { return int64(t), nil }

// MarshalGQL writes the scalar Time of the schema.
func (t Time) MarshalGQL(w io.Writer) {
	_, _ = fmt.Fprintf(w, "%q", t.String())
}

// UnmarshalGQL reads the scalar Time of the schema.
func (t *Time) UnmarshalGQL(v any) error {
	s, ok := v.(string)
	if !ok {
		return Faults{{Type: "datetime_type", Msg: "Input should be a valid datetime"}}.Err()
	}
	parsed, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		const why = "it is written as in RFC 3339, such as 2026-01-02T15:04:05Z"
		return Faults{{Type: "datetime_parsing", Msg: "Input should be a valid datetime, " + why, Ctx: map[string]any{"error": why}}}.Err()
	}
	*t = At(parsed)
	return nil
}
