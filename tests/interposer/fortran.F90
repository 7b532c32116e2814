! MPI from Fortran, with mpif.h (-DMPIF_H), `use mpi` (-DUSE_MPI) or `use mpi_f08` (-DUSE_F08): collectives, messages and
! requests of arrays on the host and on devices. Prints "right".
#if defined(USE_F08)
#define COMM_T type(MPI_Comm)
#define REQUEST_T type(MPI_Request)
#define STATUS_T type(MPI_Status)
#else
#define COMM_T integer
#define REQUEST_T integer
#endif
module memory
    use iso_c_binding
    implicit none
    interface
        function new_array(on_device, contents, count, rank) bind(C)
            import
            integer(c_int), value :: on_device, count, rank
            integer(c_int), intent(in) :: contents(*)
            type(c_ptr) :: new_array
        end function
        function address_of(array) bind(C)
            import
            type(c_ptr), value :: array
            type(c_ptr) :: address_of
        end function
        subroutine contents_of(array, contents) bind(C)
            import
            type(c_ptr), value :: array
            integer(c_int), intent(out) :: contents(*)
        end subroutine
    end interface
end module

program fortran
    use memory
#if defined(USE_F08)
    use mpi_f08
#elif defined(USE_MPI)
    use mpi
#endif
    implicit none
#if defined(MPIF_H)
    include 'mpif.h'
#endif
    integer, parameter :: n = 2500
    integer :: rank, ranks, code, place, k, next, before, index, given, at
    logical :: flag
    COMM_T :: comm
    REQUEST_T :: requests(2)
#if defined(USE_F08)
    type(MPI_Status) :: status, statuses(2)
    type(MPI_Datatype) :: types(8)
#else
    integer :: types(8)
    integer :: status(MPI_STATUS_SIZE), statuses(MPI_STATUS_SIZE, 2)
#endif
    type(c_ptr) :: a, b
    integer, pointer :: x(:), y(:)
    integer, allocatable :: mine(:), result(:), wanted(:)

    call MPI_Init_thread(MPI_THREAD_FUNNELED, given, code)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, code)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks, code)
    call MPI_Comm_dup(MPI_COMM_WORLD, comm, code)
    next = modulo(rank + 1, ranks)
    before = modulo(rank - 1, ranks)
    allocate(mine(n * ranks), result(n * ranks), wanted(n * ranks))
    do place = 0, 3
        do k = 1, n * ranks
            mine(k) = k + 1000 * rank
        end do
        a = new_array(iand(place, 1), mine, n * ranks, rank)
        b = new_array(ishft(place, -1), [(-1, k = 1, n * ranks)], n * ranks, rank)
        call c_f_pointer(address_of(a), x, [n * ranks])
        call c_f_pointer(address_of(b), y, [n * ranks])

        call MPI_Allreduce(x, y, n, MPI_INTEGER, MPI_SUM, comm, code)
        wanted = -1
        wanted(1:n) = [(ranks * k + 1000 * ranks * (ranks - 1) / 2, k = 1, n)]
        call compare("all-reduce")

        call MPI_Allreduce(MPI_IN_PLACE, y, 3, MPI_INTEGER, MPI_MAX, comm, code)
        call compare("all-reduce in place")

        call MPI_Allgather(x, n, MPI_INTEGER, y, n, MPI_INTEGER, comm, code)
        do k = 0, ranks - 1
            wanted(n * k + 1 : n * (k + 1)) = mine(1:n) + 1000 * (k - rank)
        end do
        call compare("all-gather")

        call MPI_Alltoall(x, n, MPI_INTEGER, y, n, MPI_INTEGER, comm, code)
        do k = 0, ranks - 1
            wanted(n * k + 1 : n * (k + 1)) = mine(n * rank + 1 : n * (rank + 1)) + 1000 * (k - rank)
        end do
        call compare("all-to-all")

        types = MPI_INTEGER
        y_again: block
            integer :: counts(8), places(8)
            counts = 5
            places = [(4 * n * k, k = 0, 7)]
            call MPI_Alltoallw(x, counts, places, types, y, counts, places, types, comm, code)
        end block y_again
        call compare("all-to-all of types")

        at = 0
        call MPI_Pack(x, 6, MPI_INTEGER, y, 4 * n, at, comm, code)
        if (at /= 24) call wrong("place of a pack")
        wanted(1:6) = mine(1:6)
        call compare("pack")

        call MPI_Bcast(y, n, MPI_INTEGER, 0, comm, code)
        wanted(1:n) = [(k, k = 1, n)]
        call compare("broadcast")

        call MPI_Ireduce(x, y, n, MPI_INTEGER, MPI_SUM, 0, comm, requests(1), code)
        call MPI_Wait(requests(1), MPI_STATUS_IGNORE, code)
        if (rank == 0) wanted(1:n) = [(ranks * k + 1000 * ranks * (ranks - 1) / 2, k = 1, n)]
        call compare("reduce")

        call MPI_Sendrecv(x, n, MPI_INTEGER, next, 1, y, n, MPI_INTEGER, before, 1, comm, status, code)
        wanted(1:n) = mine(1:n) + 1000 * (before - rank)
        call compare("sendrecv")
        call MPI_Get_count(status, MPI_INTEGER, k, code)
        if (k /= n) call wrong("count of a status")

        call MPI_Irecv(y, n, MPI_INTEGER, before, 2, comm, requests(1), code)
        call MPI_Isend(x, n - 10, MPI_INTEGER, next, 2, comm, requests(2), code)
        call MPI_Waitall(2, requests, statuses, code)
        call MPI_Get_count(statuses_first(), MPI_INTEGER, k, code)
        if (k /= n - 10) call wrong("count of a list of statuses")
        call compare("messages")
        if (requests(1) /= MPI_REQUEST_NULL) call wrong("a request is left")

        call MPI_Irecv(y(n + 1), n, MPI_INTEGER, before, 3, comm, requests(1), code)
        call MPI_Isend(x, n, MPI_INTEGER, next, 3, comm, requests(2), code)
        do k = 1, 2
            call MPI_Waitany(2, requests, index, status, code)
            if (index < 0 .or. index > 2) call wrong("index") ! MPICH 4.0 counts from 0 with mpi_f08
        end do
        wanted(n + 1 : 2 * n) = mine(1:n) + 1000 * (before - rank)
        call compare("messages, one by one")

        call MPI_Irecv(y, n, MPI_INTEGER, before, 4, comm, requests(1), code)
        call MPI_Isend(x(2), n, MPI_INTEGER, next, 4, comm, requests(2), code)
        flag = .false.
        do while (.not. flag)
            call MPI_Testall(2, requests, flag, MPI_STATUSES_IGNORE, code)
        end do
        wanted(1:n) = mine(2:n + 1) + 1000 * (before - rank)
        call compare("messages, asked for")
    end do
    call MPI_Comm_free(comm, code)
    call MPI_Finalize(code)
    if (rank == 0) print '(a)', "right"
contains
#if defined(USE_F08)
    function statuses_first() result(first)
        type(MPI_Status) :: first
        first = statuses(1)
    end function
#else
    function statuses_first() result(first)
        integer :: first(MPI_STATUS_SIZE)
        first = statuses(:, 1)
    end function
#endif
    subroutine compare(what)
        character(*), intent(in) :: what
        call contents_of(b, result)
        if (any(result /= wanted)) call wrong(what)
    end subroutine
    subroutine wrong(what)
        character(*), intent(in) :: what
        print '(a, i0, a, i0, 2a)', "rank ", rank, ", place ", place, ": ", what
        call MPI_Abort(MPI_COMM_WORLD, 4, code)
    end subroutine
end program
