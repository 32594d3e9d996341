package transport

import (
	"bytes"
	"compress/gzip"
	"mime"
	"net/http"
	"strconv"
	"strings"
)

// compressFrom is from how many bytes on a response is compressed for those who take that: what fits into one packet gains
// nothing. Event streams and WebSockets are never compressed: a window for each of thousands of them would take more memory than all else.
const compressFrom = 1400

// takesGzip reads the Accept-Encoding header.
func takesGzip(header http.Header) bool {
	for part := range strings.SplitSeq(strings.Join(header.Values("Accept-Encoding"), ","), ",") {
		name, params, err := mime.ParseMediaType(part)
		if err != nil || name != "gzip" {
			continue
		}
		quality, given := params["q"]
		q, err := strconv.ParseFloat(quality, 64)
		return !given || err == nil && q > 0
	}
	return false
}

func compress(body []byte) []byte {
	var b bytes.Buffer
	b.Grow(len(body) / 4)
	z, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed) // a level that there is
	_, _ = z.Write(body)                            // into memory
	_ = z.Close()
	return b.Bytes()
}
