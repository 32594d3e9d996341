package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"parley/e2e/servers"
)

// stage is the servers.T of a bench: what is started on it ends with it.
type stage struct {
	ctx     context.Context
	endings []func()
}

var _ servers.T = (*stage)(nil)

func newStage(ctx context.Context) *stage { return &stage{ctx: ctx} }

// errMissing says that a program is not installed.
var errMissing = errors.New("missing")

// gaveUp is what Fatal and its kin leave f with; try turns it into an error.
type gaveUp struct{ error }

func (s *stage) try(f func()) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case gaveUp:
			err = r.error
		default:
			panic(r)
		}
	}()
	f()
	return nil
}

func (s *stage) Helper()                          {}
func (s *stage) Context() context.Context         { return s.ctx }
func (s *stage) Cleanup(f func())                 { s.endings = append(s.endings, f) }
func (s *stage) Fatal(args ...any)                { panic(gaveUp{errors.New(fmt.Sprint(args...))}) }
func (s *stage) Fatalf(format string, arg ...any) { panic(gaveUp{fmt.Errorf(format, arg...)}) }
func (s *stage) Skipf(format string, arg ...any) {
	panic(gaveUp{fmt.Errorf("%w: "+format, append([]any{errMissing}, arg...)...)})
}

// TempDir is a folder that goes with the stage.
func (s *stage) TempDir() string {
	dir, err := os.MkdirTemp("", "parley-bench")
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// end ends what was started, the last first.
func (s *stage) end() {
	for _, f := range slices.Backward(s.endings) {
		f()
	}
	s.endings = nil
}
