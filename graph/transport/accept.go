package transport

import (
	"mime"
	"net/http"
	"strconv"
	"strings"
)

// The media types of a response, section "Media Types" of GraphQL over HTTP.
const (
	mediaGraphQL = "application/graphql-response+json"
	mediaJSON    = "application/json"
)

// negotiate picks the media type of the response from the Accept header, section "Body" of GraphQL over HTTP: the highest
// quality wins, then the more exactly named, then application/graphql-response+json, which tells a refused request from a
// proxy's answer by its status. Who names neither (no header, */*) gets application/json, as legacy clients need. It is
// false when the client takes neither.
func negotiate(header http.Header) (string, bool) {
	accept := strings.Join(header.Values("Accept"), ",")
	if strings.TrimSpace(accept) == "" {
		return mediaJSON, true
	}
	preferred, legacy := preference(accept, mediaGraphQL), preference(accept, mediaJSON)
	switch {
	case preferred.quality <= 0 && legacy.quality <= 0:
		return "", false
	case preferred.quality != legacy.quality:
		if preferred.quality > legacy.quality {
			return mediaGraphQL, true
		}
		return mediaJSON, true
	case preferred.exactness > legacy.exactness, preferred.exactness == exactName:
		return mediaGraphQL, true
	default:
		return mediaJSON, true
	}
}

// streaming reads the Accept header for text/event-stream, which must be named: whether it is acceptable, and whether it is
// wanted more than JSON. A client that names both alike gets JSON for what has one result.
func streaming(header http.Header) (acceptable, preferred bool) {
	accept := strings.Join(header.Values("Accept"), ",")
	events := preference(accept, mediaEvents)
	if events.exactness != exactName || events.quality <= 0 {
		return false, false
	}
	for _, media := range []string{mediaGraphQL, mediaJSON} {
		if other := preference(accept, media); other.quality > events.quality || other.quality == events.quality && other.exactness == exactName {
			return true, false
		}
	}
	return true, true
}

// weight is what an Accept header says of one media type.
type weight struct {
	quality   float64
	exactness int // how exactly it was named: a quality given for the name outweighs one given for */*
}

const (
	notNamed = iota
	anyType
	anySubtype
	exactName
)

func preference(accept, media string) weight {
	var best weight
	for part := range strings.SplitSeq(accept, ",") {
		name, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		if charset, ok := params["charset"]; ok && !strings.EqualFold(charset, "utf-8") {
			continue // all that is written here is UTF-8
		}
		exactness := notNamed
		switch name {
		case media:
			exactness = exactName
		case "application/*":
			if media != mediaEvents {
				exactness = anySubtype
			}
		case "*/*":
			exactness = anyType
		}
		if exactness <= best.exactness {
			continue
		}
		best = weight{quality: 1, exactness: exactness}
		if q, ok := params["q"]; ok {
			best.quality, _ = strconv.ParseFloat(q, 64) // broken: 0, not acceptable
		}
	}
	return best
}
