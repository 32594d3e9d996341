package main

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/gorilla/websocket"
)

// What a request may hold of the server before anybody knows who sent it, and for how long. The header of a request comes before its
// credential, so it is everybody's.
const (
	maxHeader   = 32 << 10 // a query in a URL, and a token beside it
	headerTime  = 5 * time.Second
	refusedBody = 4 << 10
	refusedTime = 5 * time.Second
)

// serveRefused serves a caller who is refused whatever he asks: what he may be told, such as what is wrong with his document, a short
// request gets as any other does. A longer body ends with the refusal, and the connection ends with the answer.
func serveRefused(next http.Handler, w http.ResponseWriter, r *http.Request, refusal error) {
	if r.ContentLength == 0 { // a WebSocket's request, too: it has its own limits until it is authenticated
		if !websocket.IsWebSocketUpgrade(r) {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
		return
	}
	w.Header().Set("Connection", "close")
	body := &shortBody{
		ReadCloser: http.MaxBytesReader(w, r.Body, refusedBody), connection: http.NewResponseController(w),
		until: time.Now().Add(refusedTime), refusal: refusal,
	}
	r.Body = body
	next.ServeHTTP(w, r)
	body.hurry() // for what http.Server reads of it still
}

// shortBody is the body of a caller who is refused.
type shortBody struct {
	io.ReadCloser
	connection *http.ResponseController
	until      time.Time
	refusal    error
}

func (b *shortBody) Read(p []byte) (int, error) {
	b.hurry()
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.refusal
	}
	return n, err
}

// hurry sets the connection's deadline, whatever longer one the path has set. Not every ResponseWriter has deadlines (a test's has
// none), and that is well.
func (b *shortBody) hurry() { _ = b.connection.SetReadDeadline(b.until) }
