set -e
cmake -S . -B build/gpu -G Ninja -DCMAKE_BUILD_TYPE=Release > $OUT/cmake.log 2>&1 || { tail -20 $OUT/cmake.log; exit 1; }
build() { P=/tmp/p$1; cmake --build build/gpu > $OUT/build$1.log 2>&1 || { tail -30 $OUT/build$1.log; exit 1; }
 mkdir -p $P; cp -r src/jali $P/; rm -f $P/jali/_core*.so; cmake --install build/gpu --component python --prefix $P > /dev/null; }
date; build base; date
V="apart,complex,real,nadj,nfwd,napart"
PYTHONPATH=/tmp/pbase python3 .dev/cg_variants.py base $V 8:d,16:d,24:d,8:f,16:f,24:f ";128,1" 2>&1 | tee $OUT/base.txt
date
for v in A B; do
 cp .dev/sums_$v.hpp src/jali/codegen/prelude/sums_gpu.hpp
 build $v
 PYTHONPATH=/tmp/p$v python3 .dev/cg_variants.py $v $V 8:d,16:d,24:d,8:f,16:f,24:f ";128,1" 2>&1 | tee $OUT/$v.txt
 date
done
git checkout src/jali/codegen/prelude/sums_gpu.hpp 2>/dev/null || true
