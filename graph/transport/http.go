package transport

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/gorilla/websocket"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"
)

const (
	defaultMaxBody = 1 << 20
	bodyTime       = time.Minute // for a body to come
)

// HTTP serves queries and mutations by POST, and queries by GET, as GraphQL over HTTP says. A request that is not
// well-formed is answered with a 4xx and a GraphQL error that echoes nothing of it. A well-formed one that is refused
// (parsing, validation, variables) is a 400 as application/graphql-response+json and, as the draft wants for legacy
// clients, a 200 as application/json; neither has a data entry.
//
// A POST must be application/json, which no page of another origin can send without a CORS preflight. Its URL's query
// component is not read: the body alone decides.
type HTTP struct {
	// MaxBody is the most bytes of a POST's body; 1 MiB if 0. More is a 413.
	MaxBody int64

	// StatusFor, if set, may give the HTTP status of a response that has no data, such as 401 for one that wants a
	// credential; 0 leaves the choice to the draft. A response with data is always a 200.
	StatusFor func(*graphql.Response) int

	// Refusal, if set, tells an error of the request's body that refuses its sender, such as one of a shorter limit than MaxBody for
	// strangers, from one of the connection: it gives the status of the answer, in which the schema's error presenter words the
	// error. 0 is for all others.
	Refusal func(err error) (status int)

	// Events, if set, serves those who accept text/event-stream: subscriptions, and what else they want more as events than
	// as JSON.
	Events *SSE
}

var _ graphql.Transport = HTTP{}

// Supports takes every request that no transport before it took, save a WebSocket handshake.
func (t HTTP) Supports(r *http.Request) bool { return !websocket.IsWebSocketUpgrade(r) }

// rejection is a request that did not reach the executor.
type rejection struct {
	status int
	faults malformed
	allow  string // the Allow header of a 405
}

func (e *rejection) Error() string { return e.faults.Error() }

var (
	errCutOff   = errors.New("the request was ended before its answer was there")
	errStopping = errors.New("the server is shutting down")
)

// reject refuses what stands at loc.
func reject(status int, message string, loc ...any) *rejection {
	return &rejection{status: status, faults: malformed{valueError(message, loc...)}}
}

func notAllowed(message, allow string) *rejection {
	no := reject(http.StatusMethodNotAllowed, message, "method")
	no.allow = allow
	return no
}

// Do answers one request.
func (t HTTP) Do(w http.ResponseWriter, r *http.Request, exec graphql.GraphExecutor) {
	header := w.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store") // what a viewer may see is nobody else's
	header.Add("Vary", "Accept, Accept-Encoding")

	media, acceptable := negotiate(r.Header)
	if !acceptable {
		media = mediaJSON
	}
	var events *SSE
	preferred := false
	if may, prefers := streaming(r.Header); may && t.Events != nil {
		events, preferred, acceptable = t.Events, prefers, true
	}
	ctx := r.Context()
	began := false
	defer func() {
		if v := recover(); v != nil {
			if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(v)
			}
			if began { // nothing else can be said in the middle of a stream
				_ = presentPanic(ctx, exec, v)
				_ = http.NewResponseController(w).SetWriteDeadline(time.Unix(1, 0)) // which breaks the connection
				return
			}
			t.write(w, r.Header, media, http.StatusInternalServerError, &graphql.Response{Errors: presentPanic(ctx, exec, v)})
		}
	}()

	params, err := t.read(w, r, acceptable)
	var resp *graphql.Response
	status := 0
	if err == nil {
		op, errs := exec.CreateOperationContext(ctx, params)
		if err = carries(r.Method, op, errs, events, preferred); err == nil {
			if events != nil && (preferred || len(errs) == 0 && isStream(op)) {
				began = true
				if events.serve(w, r, exec, op, refused(ctx, exec, op, errs)) {
					return
				}
				began, err = false, errStopping
			} else {
				resp, err = execute(ctx, op, errs, exec)
			}
		}
	}
	if err != nil {
		if status = t.refusal(err); status != 0 {
			resp = &graphql.Response{Errors: present(ctx, exec, err)}
		} else {
			var shown *gqlerror.Error
			shown, status = t.refuse(header, err)
			resp = &graphql.Response{Errors: gqlerror.List{shown}}
		}
	}
	if status == 0 {
		status = t.status(media, resp)
	}
	t.write(w, r.Header, media, status, resp)
}

// refusal is the status of an error that refuses whoever sent the request; else 0.
func (t HTTP) refusal(err error) int {
	if t.Refusal == nil {
		return 0
	}
	return t.Refusal(err)
}

// refuse words an error of read or execute.
func (t HTTP) refuse(header http.Header, err error) (shown *gqlerror.Error, status int) {
	if errors.Is(err, errCutOff) || errors.Is(err, errStopping) {
		return refusal(codeUnavailable, err.Error()), http.StatusServiceUnavailable
	}
	no := &rejection{status: http.StatusBadRequest}
	if !errors.As(err, &no) && !errors.As(err, &no.faults) {
		no.faults = malformed{valueError(err.Error(), "body")}
	}
	if no.allow != "" {
		header.Set("Allow", no.allow)
	}
	return refusal(codeBadUserInput, no.Error(), no.faults...), no.status
}

// read takes the parameters from the request.
func (t HTTP) read(w http.ResponseWriter, r *http.Request, acceptable bool) (*graphql.RawParams, error) {
	start := graphql.Now()
	if r.Method != http.MethodGet && r.Method != http.MethodPost {
		return nil, notAllowed("use GET or POST", "GET, POST")
	}
	if !acceptable {
		return nil, reject(http.StatusNotAcceptable, "the response can be "+mediaGraphQL+" or "+mediaJSON, "header", "Accept")
	}
	var members object
	var err error
	if r.Method == http.MethodGet {
		members, err = decodeURL(r.URL.RawQuery)
	} else {
		members, err = t.readBody(w, r)
	}
	if err != nil {
		return nil, err
	}
	params, err := members.params()
	if err != nil {
		return nil, err
	}
	params.Headers = r.Header
	params.ReadTime = graphql.TraceTiming{Start: start, End: graphql.Now()}
	return params, nil
}

func (t HTTP) readBody(w http.ResponseWriter, r *http.Request) (object, error) {
	media, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	charset, named := params["charset"]
	if err != nil || media != mediaJSON || (named && !strings.EqualFold(charset, "utf-8")) {
		return nil, reject(http.StatusUnsupportedMediaType, "send the request as application/json, in UTF-8", "header", "Content-Type")
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return nil, reject(http.StatusUnsupportedMediaType, "send the request without a content encoding", "header", "Content-Encoding")
	}
	limit := t.MaxBody
	if limit == 0 {
		limit = defaultMaxBody
	}
	// The deadline is the body's alone: left standing, it would end the request while its resolvers work.
	connection := http.NewResponseController(w)
	_ = connection.SetReadDeadline(time.Now().Add(bodyTime))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	_ = connection.SetReadDeadline(time.Time{})
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, reject(http.StatusRequestEntityTooLarge,
			"the request is larger than "+strconv.FormatInt(limit, 10)+" bytes", "body")
	case err != nil && t.refusal(err) != 0:
		return nil, err
	case err != nil:
		return nil, malformed{valueError("the request ended early", "body")}
	case len(body) == 0:
		return nil, wrong("missing", "Field required", "the request has no body", "body")
	}
	return decodeObject(body)
}

// carries refuses what HTTP cannot carry.
func carries(method string, op *graphql.OperationContext, errs gqlerror.List, events *SSE, preferred bool) error {
	if len(errs) > 0 {
		return nil
	}
	switch kind := op.Operation.Operation; {
	case kind == ast.Subscription && events == nil:
		return reject(http.StatusBadRequest,
			"subscriptions are served as "+mediaEvents+", and over WebSocket, by the subprotocol "+subprotocol, "query")
	case kind == ast.Mutation && method == http.MethodGet:
		return notAllowed("mutations are accepted by POST alone", http.MethodPost)
	case !preferred && defers(op.Doc):
		// Its later parts would have nowhere to go, and a part alone would look like the whole.
		return reject(http.StatusBadRequest, "@defer is not served over plain HTTP", "query")
	}
	return nil
}

// refused words the errors of an operation that the executor has not taken.
func refused(ctx context.Context, exec graphql.GraphExecutor, op *graphql.OperationContext, errs gqlerror.List) gqlerror.List {
	if len(errs) == 0 {
		return nil
	}
	return exec.DispatchError(graphql.WithOperationContext(ctx, op), errs).Errors
}

// execute runs an operation that has one response.
func execute(ctx context.Context, op *graphql.OperationContext, errs gqlerror.List, exec graphql.GraphExecutor) (*graphql.Response, error) {
	if len(errs) > 0 {
		return &graphql.Response{Errors: refused(ctx, exec, op, errs)}, nil
	}
	responses, ctx := exec.DispatchOperation(ctx, op)
	resp := responses(ctx)
	if resp == nil { // the executor's way to say that ctx ended first
		return nil, errCutOff
	}
	return resp, nil
}

// defers says whether any selection of the document carries @defer, which gqlgen knows without the schema naming it.
func defers(doc *ast.QueryDocument) bool {
	var in func(ast.SelectionSet) bool
	in = func(set ast.SelectionSet) bool {
		for _, selection := range set {
			switch s := selection.(type) {
			case *ast.Field:
				if in(s.SelectionSet) {
					return true
				}
			case *ast.InlineFragment:
				if s.Directives.ForName("defer") != nil || in(s.SelectionSet) {
					return true
				}
			case *ast.FragmentSpread:
				if s.Directives.ForName("defer") != nil {
					return true
				}
			}
		}
		return false
	}
	for _, op := range doc.Operations {
		if in(op.SelectionSet) {
			return true
		}
	}
	for _, fragment := range doc.Fragments {
		if in(fragment.SelectionSet) {
			return true
		}
	}
	return false
}

// status is section "Status Codes" of GraphQL over HTTP, for well-formed requests.
func (t HTTP) status(media string, resp *graphql.Response) int {
	if len(resp.Data) > 0 || len(resp.Errors) == 0 {
		return http.StatusOK
	}
	if t.StatusFor != nil {
		if status := t.StatusFor(resp); status != 0 {
			return status
		}
	}
	if media == mediaGraphQL {
		return http.StatusBadRequest
	}
	return http.StatusOK
}

func (t HTTP) write(w http.ResponseWriter, request http.Header, media string, status int, resp *graphql.Response) {
	body, err := encodeResponse(resp)
	if err != nil { // an extension that is no JSON: a fault of the schema's, never of the request
		status = http.StatusInternalServerError
		body = []byte(`{"errors":[` + internalError + `]}`)
	}
	w.Header().Set("Content-Type", media+"; charset=utf-8")
	if len(body) >= compressFrom && takesGzip(request) {
		w.Header().Set("Content-Encoding", "gzip")
		body = compress(body)
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client went away: nobody is left to tell
}
