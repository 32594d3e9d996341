//go:build !unix

package store

import "net"

// alive is asked before an idle connection is used. Here nobody can tell: the first use of one that has ended fails.
func alive(net.Conn) bool { return true }
