//go:build unix

package store

import (
	"errors"
	"os"
	"syscall"
)

// lockFile takes an advisory lock that the kernel gives back when the process ends, however it ends.
func lockFile(path string) (unlock func() error, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(errors.New("its lock file is held"), f.Close())
	}
	return f.Close, nil
}
